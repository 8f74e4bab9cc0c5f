"""An answer judged once more, outside of the browser: apart, with as little to reach as a page has.

Code runs in a forked process with limits of time and memory, and only if it keeps to what answers
need: no names or attributes that begin with an underscore, no frames, no classes, no import but
`math`, and the harmless ones of Python's own functions. The stars come back through a pipe that it
has no name for.
"""

import ast
import builtins
import json
import multiprocessing
import resource
from multiprocessing.connection import Connection
from typing import Any

from course.puzzles.catalog import PUZZLES
from course.puzzles.judge import run
from course.puzzles.tasks import Puzzle

SECONDS, MEMORY = 10, 2**30  # of an answer's process, memory beyond what it begins with
FUNCTIONS = (
    abs, all, any, bool, dict, divmod, enumerate, filter, float, frozenset, int, isinstance, iter,
    len, list, map, max, min, next, pow, range, repr, reversed, round, set, sorted, str, sum, tuple,
    zip, Exception, AssertionError, IndexError, KeyError, StopIteration, ValueError,
    ZeroDivisionError, builtins.__import__,
)  # fmt: skip
FRAMES = ("gi_", "cr_", "ag_", "tb_", "f_", "co_", "func_", "format")


def answers_in(exported: str) -> dict[str, str]:
    """The best answer to each puzzle in what *Your progress* exports.

    Raises:
        ValueError: it is no such thing.
    """
    try:
        given: Any = json.loads(exported)
        puzzles = given.get("puzzles", given)
        found = {name: each for name, each in puzzles.items() if isinstance(each, dict)}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"this is not what Your progress exports ({error})") from error
    codes = {name: found[name].get("best", found[name].get("code")) for name in found}
    return {name: code for name, code in codes.items() if name in PUZZLES and isinstance(code, str)}


def refused(source: str) -> str:
    """The reason not to run this; nothing if there is none, or if Python cannot read it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in ast.walk(tree):
        what = ""
        if isinstance(node, ast.ClassDef):
            what = f"a class, {node.name}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else node.names
            whole = [each if isinstance(each, str) else getattr(each, "name", "") for each in names]
            what = "" if whole in (["math"], ["__future__"]) else f"import of {', '.join(whole)}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith(("_", *FRAMES)):
            what = f"the attribute {node.attr}"
        elif isinstance(node, ast.Name) and node.id.startswith("__"):
            what = f"the name {node.id}"
        if what:
            return f"it is not run here, since it has {what} in line {getattr(node, 'lineno', 0)}"
    return ""


def judge_again(source: str, puzzle: Puzzle, patience: float = 1) -> tuple[int, str]:
    """The stars of an answer, and a sentence if it has none; in `patience` times its seconds."""
    if why := refused(source):
        return 0, f"{why}."
    context, limit = multiprocessing.get_context("fork"), patience * SECONDS
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_judge, args=(theirs, source, puzzle.task))
    process.start()
    theirs.close()
    try:
        report = ours.recv() if ours.poll(limit) else None
    except EOFError:
        report = None
    process.kill()
    process.join()
    if report is None:
        return 0, f"it did not end within {limit:g} s, or took too much memory."
    earned = sum(each for _, each in report["marks"]) if report["right"] else 0
    return earned, "" if earned else " ".join(report["says"])


def _judge(answer: Connection, source: str, task: dict[str, Any]) -> None:
    """Judge in a process of its own, and send what came out of it."""
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    own: dict[str, Any] = {each.__name__: each for each in FUNCTIONS}
    answer.send(run(source, json.loads(json.dumps(task)), own))
