"""The book's pages: their cells, what they are called, and what the last build computed."""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import is_myst_markdown_notebook
from sphinx_external_toc.parsing import parse_toc_yaml

from tools import execute

EQUATION = re.compile(r"\$\$(.+?)\$\$ \(([\w-]+)\)", re.DOTALL)
LABELED = re.compile(r"^\(([\w-]+)\)=\n+#+ (.*)", re.MULTILINE)
IN_THE_BROWSER = ("book/puzzles", "book/progress")  # what only a page of the book can show
UNKNOWN_NUMBER = "…"  # until the book has been built

Cell = nbformat.NotebookNode
Numbered = dict[str, tuple[str, str]]  # name → page, its number in the book


def source(root: Path, page: str) -> Path:
    """The file of a lab or of a chapter."""
    lab = root / f"{page}.ipynb"
    return lab if lab.exists() else root / f"{page}.md"


def cells(root: Path, page: str) -> list[Cell]:
    """The cells of a lab or of a chapter; a page without code is one cell."""
    return list(execute.read(source(root, page)).cells)


def figure(cell: Cell) -> dict[str, Any]:
    """The name and the caption of the figure that a cell draws, if it does."""
    return dict(cell.metadata.get("mystnb", {}).get("figure", {}))


def chapters(root: Path) -> Iterator[tuple[str, str]]:
    """Each numbered page and its chapter's number: "4" for a chapter, "L4" for a lab of it."""
    toc, number = parse_toc_yaml(root / "_toc.yml"), count(1)
    for part in toc.root.subtrees:
        for page in map(str, part.items if part.numbered else ()):
            chapter = next(number)
            yield page, f"{chapter}"
            for below in toc[page].subtrees:
                yield from ((str(lab), f"L{chapter}") for lab in below.items)


class Book:
    """All pages under `root`: what they are called, and which figures and labels they have."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.titles: dict[str, str] = {}  # page → its heading
        self.labels: dict[str, tuple[str, str]] = {}  # name → page, the heading behind it
        self.figures: Numbered = {}
        self.equations: Numbered = {}
        self.chapters = dict(chapters(root))
        for page in parse_toc_yaml(root / "_toc.yml"):
            for cell in cells(root, page):
                self._note(page, cell)

    def _note(self, page: str, cell: Cell) -> None:
        if drawn := figure(cell):
            self._count(self.figures, page, drawn["name"])
        if cell.cell_type == "markdown":
            for _, name in EQUATION.findall(cell.source):
                self._count(self.equations, page, name)
            if heading := re.search(r"^# (.*)", cell.source, re.MULTILINE):
                self.titles.setdefault(page, heading[1])
            for name, text in LABELED.findall(cell.source):
                self.labels[name] = page, text

    def _count(self, numbered: Numbered, page: str, name: str) -> None:
        """Number what stands there as the book does: 4.2 in a chapter, L4.2 in a lab of it."""
        chapter = self.chapters.get(page, "")
        before = sum(self.chapters.get(place, "") == chapter for place, _ in numbered.values())
        numbered[name] = page, f"{chapter and f'{chapter}.'}{before + 1}"

    def link(self, text: str, page: str, label: str, here: str) -> str:
        """A link to a place of a page, or its beginning; only the text if it is no notebook."""
        if page not in self.titles or not self.runs(page):
            return text
        path = "" if page == here else f"{os.path.relpath(page, Path(here).parent)}.ipynb"
        return f"[{text}]({path}{label and '#'}{label})"

    def runs(self, page: str) -> bool:
        """Whether the page has cells that a kernel can run, and so becomes a notebook."""
        if page in IN_THE_BROWSER:
            return False
        path = self.root / f"{page}.md"
        return not path.exists() or is_myst_markdown_notebook(path.read_text())


class Built:
    """What the last build has computed, by the page that said it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cache  # noqa: B019 - a converter lives as long as the program
    def _cells(self, page: str) -> list[Cell]:
        found = execute.executed(source(self.root, page))
        return [] if found is None else list(found.cells)

    def number(self, page: str, name: str, form: str) -> str:
        """A number or a text that a cell has said, formatted; … if nothing has been built."""
        for cell in self._cells(page):
            for output in cell.get("outputs", []):
                if output.get("metadata", {}).get("scrapbook", {}).get("name") == name:
                    (text,) = (t for kind, t in output["data"].items() if "text/plain" in kind)
                    try:
                        return format(ast.literal_eval(text), form)
                    except (ValueError, SyntaxError):
                        return str(text)
        return UNKNOWN_NUMBER

    def picture(self, page: str, name: str) -> bytes | None:
        """A figure of a lab, as SVG."""
        for cell in self._cells(page):
            if figure(cell).get("name") == name:
                for output in cell.outputs:
                    if svg := output.get("data", {}).get("image/svg+xml"):
                        return str(svg).encode()
        return None
