"""What pages say, in a file that the page of search results loads.

Opened from a disk, a page cannot fetch another one, so results would have no excerpts, and their
order would not know whether a page has the words one beside the other. And of the page of error
messages, each message with its address, since who pastes one pastes also what varies in it.
"""

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

PIECES = nodes.definition_list_item, nodes.paragraph  # a term with its definition is one
FILE = Path("_static", "search_texts.js")
LETTERS = {"alpha": "α", "beta": "β", "times": "×", "cdot": "·", "ge": "≥", "le": "≤", "log": "log"}
MESSAGES = "book/errors"
texts: dict[str, list[str]] = {}
messages: dict[str, str] = {}  # anchor → message


def read(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Keep a page's paragraphs."""
    pieces = (each for kind in PIECES for each in doctree.findall(kind))
    found = (without_tex(each.astext()) for each in pieces)
    texts[page] = [" ".join(each.split()) for each in found if len(each) > 1]
    if page == MESSAGES:
        for section in doctree.findall(nodes.section):
            if isinstance(section[0][0], nodes.literal):
                messages[section["ids"][0]] = section[0].astext()


def without_tex(text: str) -> str:
    """A sentence whose formulas read well enough without being set."""
    words = re.sub(r"\\([A-Za-z]+)", lambda name: LETTERS.get(name[1], ""), text)
    return re.sub(r"[\\{}^]", "", words) if words != text else text


def write(app: Sphinx, error: Exception | None) -> None:
    """Write all of them."""
    if not error and app.builder.format == "html":
        said = {"searchTexts": texts, "searchMessages": messages}
        Path(app.outdir, FILE).write_text("".join(map(script, said.items())), "utf-8")


def script(named: tuple[str, Any]) -> str:
    """A line of JavaScript that sets a global name."""
    name, value = named
    return f"globalThis.{name} = {json.dumps(value, ensure_ascii=False, separators=(',', ':'))};\n"


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", read)
    app.connect("build-finished", write)
