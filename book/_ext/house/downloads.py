"""A chapter with cells is offered as the notebook that `make lab` makes of it."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from docutils.nodes import document
from sphinx.application import Sphinx


@cache
def course(root: Path) -> tuple[Any, Any]:
    """All pages, and what has been built of them."""
    from tools.readable import Book, Built

    return Book(root), Built(root)


def offer_notebook(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None
) -> None:
    """Write the notebook beside the sources; the theme then has a button for it."""
    source = Path(app.srcdir, f"{page}.md")
    if doctree is None or not source.exists():
        return
    from tools.readable import notebook

    book, built = course(Path(app.srcdir))
    if not book.runs(page):
        return

    target = Path(app.outdir, "_sources", f"{page}.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook(book, built, page), target)
    context["ipynb_source"] = f"{page}.ipynb"


def drop_source(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None
) -> None:
    """Take the button away that would download MyST text."""
    if not context.get("ipynb_source"):
        return
    for button in context.get("header_buttons", []):
        if button["label"] == "download-buttons":
            own = button["buttons"]
            own[:] = [each for each in own if each["label"] != "download-source-button"]


def setup(app: Sphinx) -> None:
    sys.path.insert(0, str(app.srcdir))  # for `tools`
    app.connect("html-page-context", offer_notebook)
    app.connect("html-page-context", drop_source, priority=900)  # after the theme
