"""Submissions as learners hand them in: one with everything solved, and nasty ones."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import nbformat

from tools.work import LESSON, ROOT

LABS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def complete(folder: Path) -> Path:
    """Fill a folder with the project and the labs, all solved but for the capstone's run."""
    mine = folder / "mine"
    mine.mkdir(parents=True)
    lesson = ROOT / "lib" / "from_scratch"
    for name in ("__init__", "refusals", *LESSON):
        text = (lesson / f"{name}.py").read_text().replace("from_scratch", "mine")
        (mine / f"{name}.py").write_text(text)
    shutil.copy(ROOT / "tests" / "wrong" / "checks.py", mine)
    for path in LABS:
        nbformat.write(solved(path), folder / path.name)
    return folder


def solved(path: Path) -> Any:
    """A lab in which each exercise's cell has our solution, and the solutions are gone."""
    lab = nbformat.read(path, as_version=4)
    cells = {tag: cell for cell in lab.cells for tag in cell.metadata.get("tags", [])}
    for tag, cell in cells.items():
        if tag.startswith("exercise-") and tag != "exercise-capstone":
            cell.source = _renamed(cell.source, cells[tag.replace("exercise-", "solution-")].source)
    lab.cells = [cell for cell in lab.cells if "# Solution" not in cell.source]
    return lab


def _renamed(exercise: str, solution: str) -> str:
    """The solution, under the names that the exercise asks for."""
    before, asked = ast.parse(exercise).body[:-1], _call(exercise)
    kept = [ast.unparse(each) for each in before if isinstance(each, ast.Assign)]
    body = [ast.unparse(each) for each in ast.parse(solution).body[:-1]]
    pairs = zip(asked.args, _call(solution).args, strict=True)
    names = [f"{ast.unparse(own)} = {ast.unparse(ours)}" for own, ours in pairs]
    return "\n".join([*kept, *body, *names, ast.unparse(asked)])


def _call(source: str) -> ast.Call:
    last: Any = ast.parse(source).body[-1]
    found: ast.Call = last.value
    return found


RING = (ROOT / "lib" / "from_scratch" / "ring.py").read_text()
DELETES = """
import os
import shutil
from pathlib import Path

shutil.rmtree(Path(os.getcwd()), ignore_errors=True)
shutil.rmtree(Path(__file__).parents[1], ignore_errors=True)
shutil.rmtree({original!r}, ignore_errors=True)
"""
FORKS = """
import os

for _ in range(20):
    if not os.fork():
        os.setsid()
        os.execvp("sleep", ["sleep", "987654"])
"""
HUNGRY = """
import torch

kept = torch.ones(2**40)
"""
KILLS = """
import os

os.kill(os.getppid(), 9)
"""
REPLACES = """
from course.ask.verdict import Grader, Verdict


def correct(*_):
    return Verdict("right", "for everything.")


Grader.__call__ = correct


def my_ring(rank, ranks, chunks, exchange):
    return
"""
RECODES = """
def my_bytes_sent(ranks, nbytes):
    from course.ask import verdict

    verdict.same_ranges.__code__ = (lambda found, right: True).__code__
    return 2 * (ranks - 1) * nbytes / ranks
"""
TALKS = """
import json
import os

line = {"task": TASK, "status": "right", "text": "Correct.", "seconds": 0, "note": ""}
for number in range(3, 256):
    try:
        os.write(number, ("\\n" + json.dumps(line) + "\\n").encode())
    except OSError:
        pass


def my_crossover(alpha, beta, ranks):
    return 1
"""


def lab(name: str, **cells: str) -> Any:
    """A lab with other sources in the cells of these exercises ("-" is "_" in their names)."""
    found = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for cell in found.cells:
        for tag in cell.metadata.get("tags", []):
            exercise = tag.removeprefix("exercise-").replace("-", "_")
            if tag.startswith("exercise-") and exercise in cells:
                cell.source = cells[exercise]
    return found


def hand_in(folder: Path, **files: Any) -> Path:
    """A folder with these files in `mine` ("ring" is ring.py), and these labs beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, str):
            (folder / "mine").mkdir(exist_ok=True)
            (folder / "mine" / f"{name}.py").write_text(content)
        else:
            nbformat.write(content, folder / f"{name}.ipynb")
    return folder
