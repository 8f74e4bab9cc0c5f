"""A chapter or a lab as a notebook to read and to run, in JupyterLab or wherever it is downloaded.

Checks go, solutions are folded, and MyST becomes Markdown (`tools.markdown`).

Why not jupyterlab-myst? Version 2.7.0, tried in JupyterLab 4.6.6 with jupytext 1.19.6, shows boxes,
tabs, folds, exercises, equations and links between pages well, and asks nothing of other hosts. But
it knows one page, and no build: `{glue:text}` shows its target ("off_plain:.0e"), `{numref}` and
`{cite:p}` a broken link, `{claim}` "words <C15>", and `{term}` leads nowhere; `{literalinclude}`
is silently empty, `{lab-figure}` "Unknown Directive". Figures have no captions, and tags neither
fold nor remove a cell. And where somebody opens a notebook downloaded from the book, it is missing.
"""

import ast
import symtable

import nbformat

from tools.markdown import Reader
from tools.pages import Book, Built, Cell, cells, figure

KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
FOLDED_BELOW = (
    "*A solution is folded below. Click it to read it; without its first line it runs, graded.*"
)
FOLDED = {"hide-input", "remove-input", "remove-cell"}  # what the book shows without its code


def tags(cell: Cell) -> list[str]:
    """The tags that tell the book what to do with a cell."""
    return list(cell.metadata.get("tags", []))


def is_check(cell: Cell) -> bool:
    """Whether it only holds the book to what it says."""
    return "remove-cell" in tags(cell)


def is_solution(cell: Cell) -> bool:
    """Whether it is a folded solution, of an exercise or of anything else."""
    return cell.source.startswith("# Solution") or any(
        tag.startswith("solution-") for tag in tags(cell)
    )


def names(cell: Cell) -> tuple[set[str], set[str]]:
    """The names that a cell of code gives a value to, and those of others that it uses."""
    table = symtable.symtable(python(cell), "cell", "exec")
    symbols = table.get_symbols()
    given = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    return given, {each.get_name() for each in symbols if each.is_referenced()} | _globals(table)


def _globals(table: symtable.SymbolTable) -> set[str]:
    """The names that functions and classes inside use of the cell's surroundings."""
    found: set[str] = set()
    for inner in table.get_children():
        found |= {each.get_name() for each in inner.get_symbols() if each.is_global()}
        found |= _globals(inner)
    return found


def python(cell: Cell) -> str:
    """The source of a cell; lines of IPython are empty."""
    lines = cell.source.splitlines()
    return "\n".join("" if line.startswith(("%", "!")) else line for line in lines)


def needed(cell: Cell) -> str:
    """The part of a check that gives names; what it shows or asserts goes."""
    source = python(cell)
    lines = source.splitlines()
    kept = [line for line in cell.source.splitlines() if line.startswith("%")]
    for node in ast.parse(source).body:
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", [])))
        if not isinstance(node, ast.Assert | ast.Expr) and not _asserts(node):
            kept += lines[first - 1 : node.end_lineno]
    return "\n".join(kept)


def _asserts(node: ast.stmt) -> bool:
    inside = isinstance(node, ast.For | ast.With | ast.If)
    return inside and any(isinstance(each, ast.Assert) for each in ast.walk(node))


def without_checks(found: list[Cell]) -> list[Cell]:
    """All cells but the checks; what a later cell needs of one stays, folded."""
    kept: list[Cell] = []
    wanted: set[str] = set()
    for cell in reversed(found):
        given, used = names(cell) if cell.cell_type == "code" else (set(), set())
        if is_check(cell):
            if not given & wanted or not (rest := needed(cell)):
                continue
            cell.source = rest
            given, used = names(cell)
        wanted = (wanted - given) | used
        if FOLDED.intersection(tags(cell)):
            fold(cell)
        kept.insert(0, cell)
    return kept


def fold(cell: Cell) -> Cell:
    """The cell, its code hidden behind a click."""
    cell.metadata["jupyter"] = {"source_hidden": True}
    return cell


def silent(cell: Cell) -> Cell:
    """A solution, hidden and without a word: cells below may need what it defines.

    To see it graded, delete its first line and run it.
    """
    cell.source = f"%%capture solution\n{cell.source}"
    return fold(cell)


def caption(cell: Cell, reader: Reader) -> list[Cell]:
    """The number and the caption of a figure, as a cell to stand below it."""
    drawn = figure(cell)
    if not drawn:
        return []
    _, number = reader.book.figures[drawn["name"]]
    text = reader.text(f"**Fig. {number}** {drawn['caption'].strip()}")
    return [nbformat.v4.new_markdown_cell(f'<a id="{drawn["name"]}"></a>{text}')]


def notebook(book: Book, built: Built, page: str) -> nbformat.NotebookNode:
    """A chapter or a lab as a notebook to read and to run.

    Raises:
        ValueError: it has a directive or a role that is not known.
    """
    reader, converted = Reader(book, page, built), []
    for cell in without_checks(cells(book.root, page)):
        if cell.cell_type == "code" and is_solution(cell):
            converted.append(nbformat.v4.new_markdown_cell(FOLDED_BELOW))
            cell = silent(cell)
        if cell.cell_type == "markdown":
            cell.source = reader.text(cell.source)
        converted += [cell, *caption(cell, reader)]
    for number, cell in enumerate(converted):
        cell.id = str(number)
    return nbformat.v4.new_notebook(cells=converted, metadata=KERNEL)
