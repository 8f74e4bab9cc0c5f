"""MyST as Markdown that any notebook shows.

Boxes become block quotes, what is folded becomes `<details>`, references become names and links,
and numbers are those of the last build. A directive or a role that is not known here is an error.
"""

import base64
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from pybtex.database import Entry, parse_file
from sphinx.config import Config
from sphinx.directives.code import LiteralIncludeReader

from tools.pages import EQUATION, Book, Built

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([\w./-]+)\.(?:md|ipynb)(?:#([\w-]*))?\)")  # no address
OPENS = re.compile(r"^(?P<fence>:{3,}|`{3,})\{(?P<name>[\w:-]+)\} *(?P<title>.*)$")
OPTION = re.compile(r"^:([\w-]+): *(.*)$")
ROLE = re.compile(r"\{([a-z][\w:]*)\}`([^`]+)`")
NAMED = re.compile(r"^(.*?)\s*<([^>]+)>$", re.DOTALL)  # words <target>
LABEL = re.compile(r"^\(([\w-]+)\)=$")


class Reader:
    """A converter of one page's text.

    Raises ValueError for what it does not know, with the page and the line.
    """

    def __init__(self, book: Book, page: str, built: Built) -> None:
        self.book, self.page, self.built = book, page, built

    def text(self, source: str) -> str:
        """A Markdown cell."""
        source = EQUATION.sub(self._numbered, source)
        return LINK.sub(self._link, ROLE.sub(self._role, self._blocks(source.splitlines())))

    def _numbered(self, found: re.Match[str]) -> str:
        _, number = self.book.equations[found[2]]
        return f"$${found[1].rstrip()} \\tag{{{number}}}$$"

    def _link(self, found: re.Match[str]) -> str:
        text, path, label = found.groups(default="")
        return self.book.link(text, self._beside(path), label, self.page)

    def _beside(self, path: str) -> str:
        """The page at a path from this one."""
        return os.path.normpath(Path(self.page).parent / path)

    # ---- directives ----

    def _blocks(self, lines: list[str]) -> str:
        rest, done = iter(lines), []
        for line in rest:
            if found := OPENS.match(line):
                done.append(self._block(found, _until(found["fence"], rest)))
            elif line.startswith("```"):
                done += [line, *_until("```", rest), "```"]
            else:
                done.append(LABEL.sub(r'<a id="\1"></a>\n', line))
        return "\n".join(done)

    def _block(self, found: re.Match[str], inside: list[str]) -> str:
        if found["name"] not in BLOCKS:
            raise ValueError(f"{self.page}: unknown directive in {found[0]!r}")
        options = [m.groups() for m in takewhile(bool, map(OPTION.match, inside))]  # at its head
        return BLOCKS[found["name"]](self, found["title"], dict(options), inside[len(options) :])

    def quote(self, title: str, options: dict[str, str], body: list[str]) -> str:
        """A box."""
        anchor = "".join(f'<a id="{options[k]}"></a>' for k in ("name", "label") if k in options)
        lines = [f"{anchor}**{title}**", "", *self._blocks(body).strip().splitlines()]
        return "\n".join(f"> {line}".rstrip() for line in lines) + "\n"

    def details(self, title: str, _: dict[str, str], body: list[str]) -> str:
        """A folded part."""
        return (
            f"<details><summary>{title}</summary>\n\n{self._blocks(body).strip()}\n\n</details>\n"
        )

    def contents(self, _title: str, _: dict[str, str], body: list[str]) -> str:
        """The boxes in a grid or behind tabs, one below the other."""
        return self._blocks(body)

    def button(self, page: str, _: dict[str, str], body: list[str]) -> str:
        """A link to a page."""
        return f"[{' '.join(body).strip() or page}]({page}.md)"

    def included(self, file: str, options: dict[str, str], _: list[str]) -> str:
        """The piece of a file that a chapter shows, as Sphinx finds it."""
        wanted = {key: yaml.safe_load(value) for key, value in options.items()}
        folder = (self.book.root / self.page).parent
        text, _lines = LiteralIncludeReader(str(folder / file), wanted, Config()).read()
        return f"```{wanted.get('language', 'python')}\n{text.rstrip()}\n```"

    def lab_figure(self, name: str, *_: object) -> str:
        """A figure of a lab; as it came out in the last build, if there was one."""
        page, number = self.book.figures[name]
        link = self.book.link(f"Fig. {number}", page, name, self.page)
        if svg := self.built.picture(page, name):
            data = base64.b64encode(svg).decode()  # as an attachment JupyterLab takes no SVG
            return f'<img src="data:image/svg+xml;base64,{data}">\n\n**{link}**, from the lab.'
        return f"*({link}: it is drawn in the lab.)*"

    # ---- roles ----

    def _role(self, found: re.Match[str]) -> str:
        if found[1] not in ROLES:
            raise ValueError(f"{self.page}: unknown role in {found[0]!r}")
        return ROLES[found[1]](self, found[2])

    def glue(self, text: str) -> str:
        """A number that a cell of this page or of another has said."""
        where, _, name = text.rpartition("::")
        name, _, form = name.partition(":")
        page = self._beside(os.path.splitext(where)[0]) if where else self.page
        return self.built.number(page, name, form)

    def name(self, text: str) -> str:
        """The words that stand for a term or a claim."""
        return _named(text)[0]

    def code(self, text: str) -> str:
        """The name of a function or a class."""
        return f"`{self.name(text).lstrip('~')}`"

    def numref(self, name: str) -> str:
        """A figure's number, as the book has it."""
        page, number = self.book.figures[name]
        return self.book.link(f"Fig. {number}", page, name, self.page)

    def ref(self, text: str) -> str:
        """A place in the book, by words of the sentence or by its heading."""
        words, label = _named(text)
        page, heading = self.book.labels[label]
        return self.book.link(heading if words == label else words, page, label, self.page)

    def equation(self, name: str) -> str:
        """An equation's number, and the page that shows it."""
        page, number = self.book.equations[name]
        return f"({number}){self._of(page)}"

    def _of(self, page: str) -> str:
        return "" if page == self.page else f" of {self.book.titles[page]}"

    def cited(self, keys: str) -> str:
        """Authors and years, in parentheses."""
        return f"({'; '.join(f'{who}, {year}' for who, year in self._sources(keys))})"

    def cited_in_text(self, keys: str) -> str:
        """Authors, and years in parentheses."""
        return ", ".join(f"{who} ({year})" for who, year in self._sources(keys))

    def _sources(self, keys: str) -> list[tuple[str, str]]:
        entries = bibliography(self.book.root)
        found = [entries[key.strip()] for key in keys.split(",")]
        return [(_authors(entry), entry.fields["year"]) for entry in found]


def _until(fence: str, rest: Iterator[str]) -> list[str]:
    """The lines up to the one that closes the fence, which is gone, too."""
    return list(takewhile(lambda line: line.strip() != fence, rest))


def _named(text: str) -> tuple[str, str]:
    """The words and the target of a reference; one stands for both if there is no other."""
    found = NAMED.match(text)
    return (found[1], found[2]) if found else (text, text)


@cache
def bibliography(root: Path) -> Any:
    """Key → entry."""
    return parse_file(str(root / "book" / "references.bib")).entries


def _authors(entry: Entry) -> str:
    people = entry.persons.get("author", [])
    names = [" ".join(person.last_names) or str(person) for person in people]
    names = [name.strip("{}") for name in names or [entry.fields["title"]]]
    return f"{names[0]} et al." if len(names) > 2 else " and ".join(names)


BLOCKS: dict[str, Callable[[Reader, str, dict[str, str], list[str]], str]] = {
    "admonition": Reader.quote,
    "grid-item-card": Reader.quote,
    "tab-item": Reader.quote,
    "exercise": lambda reader, title, *rest: reader.quote(f"Exercise: {title}", *rest),
    "solution": lambda reader, _, *rest: reader.details("Solution", *rest),
    "dropdown": Reader.details,
    "grid": Reader.contents,
    "tab-set": Reader.contents,
    "button-ref": Reader.button,
    "literalinclude": Reader.included,
    "lab-figure": Reader.lab_figure,
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
