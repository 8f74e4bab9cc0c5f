"""A reader's file, loaded where it runs: on the ranks, which it may break as it likes.

The grader's own process never imports it. So an error in it, a loop without end or an exit costs
the milestone that is graded, and no other; and what it puts in the place of the grader's code is
seen. (Somebody who wants to deceive his own machine still can.)
"""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from functools import cache, partial
from io import StringIO
from operator import is_
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, TypeVar

from torch.optim import Optimizer

from course.ask import journal
from course.ask.verdict import LESSON, Wrong, on_ranks, without_lesson

T = TypeVar("T")

TIMEOUT = 30.0
HINTS = {"NoneType": " Is it the gradient of a frozen parameter?"}
IMPORTS_LESSON = re.compile(rf"^\s*(from|import) +{LESSON}\b", re.MULTILINE)
GUARDED = re.compile(r"(course|minidist)(\.|$)|torch(\.distributed(\.distributed_c10d)?)?$|time$")
ABORTED = re.compile(r"^\[rank \d+\] (terminate called|  what\(\)).*\n?", re.MULTILINE)


def file_of(module: str) -> Path:
    """A module's file, found without importing it; NotImplementedError if there is none."""
    package, _, name = module.rpartition(".")
    spec = importlib.util.find_spec(package) if package else None
    folders = spec and spec.submodule_search_locations
    for path in (Path(folder, f"{name}.py") for folder in folders or []):
        if path.exists():
            return path
    raise NotImplementedError(f"There is no {module.replace('.', '/')}.py yet: write it.")


def load(package: str, file: str) -> ModuleType:
    """A file of the project; the reader's own are imported anew."""
    if package != LESSON:
        importlib.invalidate_caches()
        for name in [each for each in sys.modules if each.split(".")[0] == package]:
            del sys.modules[name]
    return importlib.import_module(f"{package}.{file}")


def mine(file: str) -> ModuleType:
    """The reader's own file, or where there is none, as in the book, that of `from_scratch`."""
    return load("mine" if importlib.util.find_spec("mine") else LESSON, file)


def found(package: str, file: str, *names: str) -> Any:
    """The object of this name in a file of the project; the file itself for several names.

    Raises:
        NotImplementedError: there is no such file or name yet.
        Wrong: the file is no Python, or takes what it is to be from the lesson.
    """
    try:
        text = file_of(f"{package}.{file}").read_text()
    except NotImplementedError as error:
        raise NotImplementedError(f"there is no {names[0]} in {package}/{file}.py.") from error
    if package != LESSON and IMPORTS_LESSON.search(text):
        raise Wrong(f"your {package}/{file}.py imports {LESSON}, which is the solution.")
    try:
        with without_lesson() if package != LESSON else nullcontext():
            module = load(package, file)
    except SyntaxError as error:
        name = Path(error.filename or file).name
        kind = type(error).__name__
        raise Wrong(f"in {name}, line {error.lineno}: {kind}: {error.msg}.") from error
    for name in names:
        if not hasattr(module, name):
            raise NotImplementedError(f"there is no {name} in {package}/{file}.py.")
    return module if len(names) > 1 else getattr(module, names[0])


def source(package: str, file: str, *names: str) -> Callable[[], Any]:
    """Loads something of a project's file, on a rank."""
    return partial(found, package, file, *names)


def graded(
    source: Callable[[], Any], ranks: int, work: Callable[..., Any], *args: Any
) -> list[Any]:
    """Results of work(what `source` loads, *args) on so many ranks.

    Raises:
        Wrong: as `on_ranks`; where ranks hang or one is aborted, it says why, if they tell.
    """
    printed, why = StringIO(), ""
    with TemporaryDirectory() as folder:
        each = partial(in_journal, Path(folder), source, work, *args)
        try:
            with redirect_stdout(printed):
                return on_ranks(each, ranks, timeout=TIMEOUT, hints=HINTS)
        except Wrong as wrong:
            if why := journal.why(Path(folder), ranks, str(wrong)):
                where = f"on {ranks} real processes " if ranks > 1 else ""
                raise Wrong(f"{where}{why}") from wrong.__cause__
            raise
        finally:
            text = printed.getvalue()
            print(ABORTED.sub("", text) if why else text, end="")


def in_journal(folder: Path, source: Callable[[], Any], work: Callable[..., T], *args: Any) -> T:
    """On a rank: as `with_submission`, and write down in the folder what the rank posts."""
    journal.begin(folder)
    result = with_submission(source, work, *args)
    journal.end()
    return result


def with_submission(source: Callable[[], Any], work: Callable[..., T], *args: Any) -> T:
    """On a rank: work(what `source` loads, *args).

    Raises:
        NotImplementedError: a function is still to be written; it says where.
        Wrong: the reader's code has replaced a function of the course or of torch.distributed.
    """
    try:
        return guarded(lambda: work(guarded(source), *args))
    except NotImplementedError as error:
        if error.args:
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"in {'/'.join(Path(frame.filename).parts[-2:])}, line {frame.lineno}"
        raise NotImplementedError(f"{where}, {frame.name} is still to be written.") from error


def guarded(work: Callable[[], T]) -> T:
    """The result of `work`, if it leaves the functions that graders stand on as they are."""
    before = [(place, holder, dict(vars(holder))) for place, holder in _holders()]
    result = work()
    for place, holder, members in before:
        now = vars(sys.modules.get(place, holder))
        if all(map(is_, map(now.get, members), members.values())):
            continue  # nearly always: asked without a step of Python per name
        for name, value in members.items():
            if now.get(name) is not value and _is_stood_on(holder, name, value):
                raise Wrong(f"your file replaces {place}.{name}; leave what it stands on as it is.")
    return result


def _holders() -> list[tuple[str, Any]]:
    """Modules that a grader stands on, and the classes made in them, by name."""
    places = [(name, module) for name, module in sys.modules.items() if GUARDED.match(name)]
    return places + [kind for name, _ in places for kind in _kinds(name)]


@cache
def _kinds(name: str) -> list[tuple[str, type]]:
    """The classes made in a module; asked by `type`, as an old name of torch.distributed warns."""
    return [
        (f"{name}.{each.__name__}", each)
        for each in vars(sys.modules[name]).values()
        if issubclass(type(each), type) and each.__module__ == name
    ]


def _is_stood_on(holder: Any, name: str, value: Any) -> bool:
    """A function, class or method; not `step` of an optimizer: torch wraps it for the first one."""
    if name == "step" and issubclass(type(holder), type) and issubclass(holder, Optimizer):
        return False
    return callable(value) or issubclass(type(value), property | classmethod | staticmethod)
