"""What pages say, in a file that the page of search results loads.

Opened from a disk, a page cannot fetch another one, so results would have no excerpts, and their
order would not know whether a page has the words one beside the other. And of the page of error
messages, each entry with its address: the message, others that mean the same, which stand after
"Also" in the entry, and its first two sentences.
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
ALSO = "Also "
messages: dict[str, dict[str, Any]] = {}  # anchor → lines, and what the page says of them


def read(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Keep a page's paragraphs."""
    pieces = (each for kind in PIECES for each in doctree.findall(kind))
    found = (without_tex(each.astext()) for each in pieces)
    texts[page] = [" ".join(each.split()) for each in found if len(each) > 1]
    if page == MESSAGES:
        for section in doctree.findall(nodes.section):
            if isinstance(section[0][0], nodes.literal):
                messages[section["ids"][0]] = entry(section[0].astext(), section[1])


def entry(message: str, paragraph: nodes.Element) -> dict[str, Any]:
    """All lines of an entry's message, and its first two sentences."""
    also, text = [], paragraph.astext()
    if text.startswith(ALSO):
        names, _, text = text.partition(". ")
        literals = [each.astext() for each in paragraph.findall(nodes.literal)]
        also = [each for each in literals if each in names]
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z`\[*])", " ".join(text.split()))
    return {"lines": [message, *also], "says": " ".join(sentences[:2])}


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
