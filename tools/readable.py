"""A chapter for JupyterLab: its MyST becomes Markdown that a notebook shows.

Boxes become block quotes, what is folded becomes `<details>`, references become names and links,
and numbers are those of the last build. A directive or a role that is not known here is an error.
"""

import ast
import base64
import os
import re
import symtable
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import yaml
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from pybtex.database import Entry, parse_file
from sphinx.config import Config
from sphinx.directives.code import LiteralIncludeReader
from sphinx_external_toc.parsing import parse_toc_yaml

from tools import execute

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([\w./-]+)\.(?:md|ipynb)(?:#([\w-]*))?\)")  # no address
OPENS = re.compile(r"^(?P<fence>:{3,}|`{3,})\{(?P<name>[\w-]+)\} *(?P<title>.*)$")
OPTION = re.compile(r"^:([\w-]+): *(.*)$")
ROLE = re.compile(r"\{([\w:]+)\}`([^`]+)`")
NAMED = re.compile(r"^(.*?)\s*<([^>]+)>$", re.DOTALL)  # text <target>
LABEL = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
EQUATION = re.compile(r"\$\$(.+?)\$\$ \(([\w-]+)\)", re.DOTALL)
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
UNKNOWN_NUMBER = "…"  # until the book has been built

Cell = nbformat.NotebookNode


class Book:
    """All pages under `root`: what they are called, and which figures and labels they have."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.titles: dict[str, str] = {}  # page → its heading
        self.figures: dict[str, tuple[str, int]] = {}  # name → page, number on it
        self.labels: dict[str, tuple[str, str]] = {}  # name → page, the heading behind it
        self.equations: dict[str, tuple[str, int]] = {}  # name → page, number on it
        for page in parse_toc_yaml(root / "_toc.yml"):
            for cell in cells(root, page):
                self._note(page, cell)

    def _note(self, page: str, cell: Cell) -> None:
        figure = cell.metadata.get("mystnb", {}).get("figure", {})
        if name := figure.get("name"):
            self.figures[name] = page, _next(self.figures, page)
        if cell.cell_type == "markdown":
            for _, name in EQUATION.findall(cell.source):
                self.equations[name] = page, _next(self.equations, page)
            if heading := re.search(r"^# (.*)", cell.source, re.MULTILINE):
                self.titles.setdefault(page, heading[1])
            for name, text in re.findall(r"^\(([\w-]+)\)=\n+#+ (.*)", cell.source, re.MULTILINE):
                self.labels[name] = page, text

    def link(self, text: str, page: str, label: str, here: str) -> str:
        """To a place of a page, or its beginning; only the text if it is no notebook."""
        if page not in self.titles or not self.runs(page):
            return text
        path = "" if page == here else f"{os.path.relpath(page, Path(here).parent)}.ipynb"
        return f"[{text}]({path}{label and '#'}{label})"

    def runs(self, page: str) -> bool:
        """Whether the page has cells, and so becomes a notebook."""
        path = self.root / f"{page}.md"
        return not path.exists() or is_myst_markdown_notebook(path.read_text())

    def figure(self, name: str, here: str) -> str:
        """What a sentence calls it."""
        page, number = self.figures[name]
        text = f"Figure {number}" if page == here else f"Figure {number} of {self.titles[page]}"
        return self.link(text, page, name, here)


def _next(numbered: dict[str, tuple[str, int]], page: str) -> int:
    return 1 + sum(place == page for place, _ in numbered.values())


def cells(root: Path, page: str) -> list[Cell]:
    """Of a lab, of a chapter with cells, or of a page of text."""
    lab, chapter = root / f"{page}.ipynb", root / f"{page}.md"
    if lab.exists():
        return list(nbformat.read(lab, as_version=4).cells)
    text = chapter.read_text()
    if is_myst_markdown_notebook(text):
        return list(read_myst_markdown_notebook(text).cells)
    return [nbformat.v4.new_markdown_cell(text)]


class Built:
    """What the last build has computed, by the page that said it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cache  # noqa: B019 - a converter lives as long as the program
    def _cells(self, page: str) -> list[Cell]:
        path = next(p for s in (".ipynb", ".md") if (p := self.root / f"{page}{s}").exists())
        found = execute.executed(path)
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
            if cell.metadata.get("mystnb", {}).get("figure", {}).get("name") == name:
                for output in cell.outputs:
                    if svg := output.get("data", {}).get("image/svg+xml"):
                        return str(svg).encode()
        return None


class Reader:
    """Converts the cells of one page.

    Raises ValueError for what it does not know, with the page and the line.
    """

    def __init__(self, book: Book, page: str, built: Built) -> None:
        self.book, self.page, self.built = book, page, built

    def text(self, source: str) -> str:
        """A Markdown cell."""
        source = EQUATION.sub(self._numbered, source)
        return LINK.sub(self._link, self._roles(self._blocks(source.splitlines())))

    def _blocks(self, lines: list[str]) -> str:
        done: list[str] = []
        while lines:
            line, *lines = lines
            if found := OPENS.match(line):
                inside, lines = _split(lines, found["fence"])
                options = dict(m.groups() for each in inside if (m := OPTION.match(each)))
                body = [each for each in inside if not OPTION.match(each)] if options else inside
                block = BLOCKS.get(found["name"])
                if not block:
                    raise ValueError(f"{self.page}: unknown directive in {line!r}")
                done.append(block(self, found["title"], options, body))
            elif line.startswith("```") and not line.strip("`").startswith("{"):
                inside, lines = _split(lines, "```")
                done += [line, *inside, "```"]
            elif label := LABEL.match(line):
                done.append(f'<a id="{label[1]}"></a>\n')
            else:
                done.append(line)
        return "\n".join(done)

    def quote(self, title: str, options: dict[str, str], body: list[str]) -> str:
        """A box."""
        anchor = "".join(f'<a id="{options[k]}"></a>' for k in ("name", "label") if k in options)
        lines = [f"{anchor}**{title}**", "", *self._blocks(body).strip().splitlines()]
        return "\n".join(f"> {line}".rstrip() for line in lines) + "\n"

    def details(self, title: str, _: dict[str, str], body: list[str]) -> str:
        """What is folded."""
        inside = self._blocks(body).strip()
        return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>\n"

    def included(self, file: str, options: dict[str, str], _: list[str]) -> str:
        """The piece of a file that a chapter shows, as Sphinx finds it."""
        wanted = {key: yaml.safe_load(value) for key, value in options.items()}
        folder = (self.book.root / self.page).parent
        text, _lines = LiteralIncludeReader(str(folder / file), wanted, Config()).read()
        return f"```{wanted.get('language', 'python')}\n{text.rstrip()}\n```"

    def lab_figure(self, name: str, *_: object) -> str:
        """A figure of a lab; as it came out in the last build, if there was one."""
        page, number = self.book.figures[name]
        link = self.book.link(f"Figure {number} of the lab", page, name, self.page)
        if svg := self.built.picture(page, name):
            data = base64.b64encode(svg).decode()  # as an attachment JupyterLab takes no SVG
            return f'<img src="data:image/svg+xml;base64,{data}">\n\n*{link}*'
        return f"*({link}: it is drawn there.)*"

    def _link(self, found: re.Match[str]) -> str:
        text, path, label = found.groups(default="")
        page = os.path.normpath(Path(self.page).parent / path)
        return self.book.link(text, page, label, self.page)

    def _numbered(self, found: re.Match[str]) -> str:
        _, number = self.book.equations[found[2]]
        return f"$${found[1].rstrip()} \\tag{{{number}}}$$"

    def _roles(self, text: str) -> str:
        def role(found: re.Match[str]) -> str:
            if found[1] not in ROLES:
                raise ValueError(f"{self.page}: unknown role in {found[0]!r}")
            return ROLES[found[1]](self, found[2])

        return ROLE.sub(role, text)

    def glue(self, text: str) -> str:
        """A number that a cell of this page or of another has said."""
        where, _, name = text.rpartition("::")
        name, _, form = name.partition(":")
        page = self.page
        if where:
            page = os.path.normpath(Path(self.page).parent / Path(where).with_suffix(""))
        return self.built.number(page, name, form)

    def name(self, text: str) -> str:
        """Of a term or a claim: what the sentence says."""
        return found[1] if (found := NAMED.match(text)) else text

    def code(self, text: str) -> str:
        """Of a function or a class."""
        return f"`{self.name(text).lstrip('~')}`"

    def numref(self, name: str) -> str:
        """A figure's."""
        return self.book.figure(name, self.page)

    def ref(self, text: str) -> str:
        """A place in the book."""
        found = NAMED.match(text)
        label = found[2] if found else text
        page, heading = self.book.labels[label]
        return self.book.link(found[1] if found else heading, page, label, self.page)

    def equation(self, name: str) -> str:
        """Its number, and where it stands."""
        page, number = self.book.equations[name]
        return f"({number})" if page == self.page else f"({number}) of {self.book.titles[page]}"

    def cited(self, keys: str) -> str:
        """Authors and years, in parentheses."""
        sources = bibliography(self.book.root)
        return f"({'; '.join(f'{_authors(sources[k])}, {_year(sources[k])}' for k in _keys(keys))})"

    def cited_in_text(self, keys: str) -> str:
        """Authors, and years in parentheses."""
        sources = bibliography(self.book.root)
        return ", ".join(f"{_authors(sources[k])} ({_year(sources[k])})" for k in _keys(keys))


def _split(lines: list[str], fence: str) -> tuple[list[str], list[str]]:
    """The lines up to the one that closes the fence, and those behind it."""
    close = next((n for n, line in enumerate(lines) if line.strip() == fence), len(lines))
    return lines[:close], lines[close + 1 :]


Block = Callable[[Reader, str, dict[str, str], list[str]], str]
BLOCKS: dict[str, Block] = {
    "admonition": Reader.quote,
    "grid-item-card": Reader.quote,
    "exercise": lambda r, title, *rest: r.quote(f"Exercise: {title}", *rest),
    "solution": lambda r, _, *rest: r.details("Solution", *rest),
    "dropdown": Reader.details,
    "tab-item": Reader.quote,
    "tab-set": lambda r, title, options, body: r._blocks(body),
    "grid": lambda r, title, options, body: r._blocks(body),
    "button-ref": lambda r, page, options, body: f"[{' '.join(body).strip() or page}]({page}.md)",
    "literalinclude": Reader.included,
    "lab-figure": Reader.lab_figure,
    "figures": lambda *_: "",
}
ROLES: dict[str, Callable[[Reader, str], str]] = {
    "glue:text": Reader.glue,
    "term": Reader.name,
    "claim": Reader.name,
    "py:func": Reader.code,
    "py:class": Reader.code,
    "numref": Reader.numref,
    "ref": Reader.ref,
    "eq": Reader.equation,
    "cite:p": Reader.cited,
    "cite:t": Reader.cited_in_text,
}


# ---- sources ----


@cache
def bibliography(root: Path) -> Any:
    """Key → entry."""
    return parse_file(str(root / "book" / "references.bib")).entries


def _keys(text: str) -> list[str]:
    return [key.strip() for key in text.split(",")]


def _authors(entry: Entry) -> str:
    people = entry.persons.get("author", [])
    names = [" ".join(person.last_names) or str(person) for person in people]
    names = [name.strip("{}") for name in names] or [entry.fields["title"].strip("{}")]
    return f"{names[0]} et al." if len(names) > 2 else " and ".join(names)


def _year(entry: Entry) -> str:
    return str(entry.fields["year"])


# ---- whole pages ----


def tags(cell: Cell) -> list[str]:
    """What the book does with a cell."""
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
    table = symtable.symtable("\n".join(python(cell)), "cell", "exec")
    symbols = table.get_symbols()
    given = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    return given, {each.get_name() for each in symbols if each.is_referenced()} | _globals(table)


def _globals(table: symtable.SymbolTable) -> set[str]:
    """What functions and classes inside use of the cell's surroundings."""
    found: set[str] = set()
    for inner in table.get_children():
        found |= {each.get_name() for each in inner.get_symbols() if each.is_global()}
        found |= _globals(inner)
    return found


def python(cell: Cell) -> list[str]:
    """The lines of a cell; IPython's own are empty."""
    lines = cell.source.splitlines()
    return ["" if line.startswith(("%", "!")) else line for line in lines]


def needed(cell: Cell) -> str:
    """Of a check what gives names; what it shows or asserts goes."""
    lines = python(cell)
    kept = [line for line in cell.source.splitlines() if line.startswith("%")]
    for node in ast.parse("\n".join(lines)).body:
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
        if is_check(cell) and not given & wanted:
            continue
        if is_check(cell):
            cell.source = needed(cell)
            given, used = names(cell)
        wanted = (wanted - given) | used
        if is_check(cell) or "hide-input" in tags(cell) or "remove-input" in tags(cell):
            cell.metadata["jupyter"] = {"source_hidden": True}
        kept.insert(0, cell)
    return kept


def silent(cell: Cell) -> Cell:
    """A solution, hidden and without a word: cells below may need what it defines.

    To see it graded, delete its first line and run it.
    """
    cell.source = f"%%capture solution\n{cell.source}"
    cell.metadata["jupyter"] = {"source_hidden": True}
    return cell


def caption(cell: Cell, reader: Reader) -> Cell | None:
    """What stands below a figure, as a cell of its own."""
    figure = cell.metadata.get("mystnb", {}).get("figure")
    if not figure:
        return None
    _, number = reader.book.figures[figure["name"]]
    text = reader.text(f"*Figure {number}.* {figure['caption'].strip()}")
    return nbformat.v4.new_markdown_cell(f'<a id="{figure["name"]}"></a>{text}')


def notebook(book: Book, built: Built, page: str) -> nbformat.NotebookNode:
    """A chapter or a lab as a notebook to read and to run.

    Raises:
        ValueError: it has a directive or a role that is not known.
    """
    reader, converted = Reader(book, page, built), []
    for cell in without_checks(cells(book.root, page)):
        if cell.cell_type == "code" and is_solution(cell):
            cell = silent(cell)
        if cell.cell_type == "markdown":
            cell.source = reader.text(cell.source)
        converted += [cell, below] if (below := caption(cell, reader)) else [cell]
    for number, cell in enumerate(converted):
        cell.id = str(number)
    return nbformat.v4.new_notebook(cells=converted, metadata=KERNEL)
