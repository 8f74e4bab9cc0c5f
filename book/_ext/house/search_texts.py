"""What pages say, in a file that the page of search results loads.

Opened from a disk, a page cannot fetch another one, so results would have no excerpts, and their
order would not know whether a page has the words one beside the other.
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
texts: dict[str, list[str]] = {}


def read(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Keep a page's paragraphs."""
    if doctree is not None:
        pieces = (each for kind in PIECES for each in doctree.findall(kind))
        found = (without_tex(each.astext()) for each in pieces)
        texts[page] = [" ".join(each.split()) for each in found if len(each) > 1]


def without_tex(text: str) -> str:
    """A sentence whose formulas read well enough without being set."""
    words = re.sub(r"\\([A-Za-z]+)", lambda name: LETTERS.get(name[1], ""), text)
    return re.sub(r"[\\{}^]", "", words) if words != text else text


def write(app: Sphinx, error: Exception | None) -> None:
    """Write all of them."""
    if not error and app.builder.format == "html":
        said = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
        Path(app.outdir, FILE).write_text(f"globalThis.searchTexts = {said};\n", "utf-8")


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", read)
    app.connect("build-finished", write)
