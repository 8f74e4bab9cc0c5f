"""The graded tasks of a submission: milestones of the project, and exercises of its labs."""

import ast
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from course.ask.verdict import Verdict
from course.project.report import grade, names_of
from course.project.submission import guarded

LABS = Path(__file__).parents[3] / "notebooks"

Tasks = dict[str, Callable[[], Verdict]]  # name → what grades it


def tasks_of(folder: Path) -> Tasks:
    """The project, whether or not it is there, and the labs that are."""
    found: Tasks = {f"project: {name}": partial(grade, name) for name in names_of("")}
    for path in sorted(folder.rglob("*.ipynb")):
        if (LABS / path.name).exists() and ".ipynb_checkpoints" not in path.parts:
            for tag in stubs(path.stem):
                name = f"{path.stem}: {tag.removeprefix('exercise-')}"
                found[name] = partial(exercise, path, tag)
    return found


@cache
def cells(path: Path) -> list[tuple[list[str], str]]:
    """The tags of each code cell, and its Python."""
    magic = TransformerManager()  # type: ignore[no-untyped-call]  # `%config` is no Python
    return [
        (cell.metadata.get("tags", []), magic.transform_cell(cell.source))
        for cell in nbformat.read(path, as_version=4).cells  # type: ignore[no-untyped-call]
        if cell.cell_type == "code"
    ]


def stubs(lab: str) -> dict[str, str]:
    """The call of the grader with which each exercise's cell ends, as the course has it."""
    return {
        tag: ast.unparse(ast.parse(source).body[-1])
        for tags, source in cells(LABS / f"{lab}.ipynb")
        for tag in tags
        if tag.startswith("exercise-")
    }


def imports(lab: str) -> Iterator[str]:
    """Imports of a lab's cells; an exercise needs no others."""
    for _, source in cells(LABS / f"{lab}.ipynb"):
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield ast.unparse(node)


def exercise(path: Path, tag: str) -> Verdict:
    """Run a learner's cell, and then the course's grader, whatever the cell itself has graded."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("\n".join(imports(path.stem)), names)
    graders = names["grade"]

    def graded() -> Verdict:
        sources = [source for tags, source in cells(path) if tag in tags]
        if not sources:
            raise NotImplementedError(f"{path.name} has no cell with the tag {tag}.")
        code = ast.parse(sources[-1])
        if code.body and isinstance(code.body[-1], ast.Expr):
            del code.body[-1]
        exec(compile(code, path.name, "exec"), names)
        names["grade"] = graders
        verdict: Verdict = eval(stubs(path.stem)[tag], names)
        return verdict

    try:
        return guarded(graded)
    except NotImplementedError as error:
        return Verdict("not yet", str(error))
    except Exception as error:
        return Verdict("wrong", f"{path.name}: {type(error).__name__}: {error}.")
