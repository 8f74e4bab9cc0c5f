"""The course's labs: which exercises each has, and how a notebook is found to be a copy of one."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from IPython.core.inputtransformer2 import TransformerManager

LABS = Path(__file__).parents[3] / "notebooks"
TAG = "exercise-"


class Cell(NamedTuple):
    """A code cell: its tags, and its source as it stands in the notebook."""

    tags: tuple[str, ...]
    source: str


def cells_in(notebook: bytes) -> list[Cell]:
    """The code cells of a notebook.

    Raises:
        ValueError: it is no notebook.
    """
    try:
        return [
            Cell(tuple(map(str, cell.get("metadata", {}).get("tags", []))), _text(cell["source"]))
            for cell in json.loads(notebook)["cells"]
            if cell["cell_type"] == "code"
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("it is no notebook that can be read") from error


def _text(source: object) -> str:
    if not isinstance(source, str | list):
        raise TypeError
    return "".join(map(str, source))


def python(cell: Cell) -> str:
    """A cell's Python: `%config` is none."""
    transformed: str = TransformerManager().transform_cell(cell.source)  # type: ignore[no-untyped-call]
    return transformed


@cache
def labs() -> dict[str, list[Cell]]:
    """All labs as the course has them."""
    return {path.stem: cells_in(path.read_bytes()) for path in sorted(LABS.glob("*.ipynb"))}


@cache
def stubs(lab: str) -> dict[str, Cell]:
    """The cells to be written, by their tags."""
    return {tag: cell for cell in labs()[lab] for tag in cell.tags if tag.startswith(TAG)}


@cache
def grading(lab: str, tag: str) -> ast.Call:
    """The call of the grader with which an exercise's cell ends."""
    last = ast.parse(python(stubs(lab)[tag])).body[-1]
    assert isinstance(last, ast.Expr)
    assert isinstance(last.value, ast.Call)
    return last.value


def imports(lab: str) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports of a lab's cells."""
    for cell in labs()[lab]:
        for node in ast.parse(python(cell)).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node


def lab_of(name: str, cells: list[Cell]) -> str | None:
    """The lab of which this notebook is a copy, whatever its name is now; None if of none.

    It has the tags of all its exercises, or a part of them and the lab's name in its own.
    """
    tags = {tag for cell in cells for tag in cell.tags}
    ranked = []
    for lab in labs():
        share = len(tags & {*stubs(lab)}) / len(stubs(lab))
        if share and (share == 1 or lab in name):
            ranked.append((lab == name, share, len(lab) * (lab in name), lab))
    return max(ranked)[-1] if ranked else None


def with_tags(name: str, cells: list[Cell]) -> list[Cell]:
    """The cells of a notebook that has lost its tags, as some editors do, with those it had.

    A cell is known by the call of a grader at its end.
    """
    lab = max((lab for lab in labs() if lab in name), key=len, default="")
    if not lab or any(tag.startswith(TAG) for cell in cells for tag in cell.tags):
        return cells
    ends = {ast.unparse(grading(lab, tag).func): tag for tag in stubs(lab)}

    def tagged(cell: Cell) -> Cell:
        call = re.findall(r"^(grade\.\w+)\(", cell.source, re.MULTILINE)
        if not call or call[-1] not in ends or cell.source.startswith("# Solution"):
            return cell
        return Cell((*cell.tags, ends[call[-1]]), cell.source)

    return [tagged(cell) for cell in cells]


def written(lab: str, cells: list[Cell]) -> int:
    """Number of exercises whose cells are not as they were handed out."""
    own = {tag: cell.source.strip() for cell in cells for tag in cell.tags}
    given = {tag: cell.source.strip() for tag, cell in stubs(lab).items()}
    return sum(own.get(tag, "") not in ("", source) for tag, source in given.items())
