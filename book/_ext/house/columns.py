"""Code tells the page how long its longest line is, so that a desk can show all of it."""

import re
from html import unescape
from typing import Any

from docutils.nodes import document
from sphinx.application import Sphinx

CODE = re.compile(r'<div class="highlight">(<pre>(.*?)</pre>)', re.DOTALL)
TAG = re.compile(r"<[^>]*>")
FITS = 80  # columns for which there is always room


def tell_columns(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None
) -> None:
    """Write the number of columns into the tag around each block of long lines."""

    def columns(block: re.Match[str]) -> str:
        longest = max(map(len, unescape(TAG.sub("", block[2])).splitlines()), default=0)
        style = f' style="--columns: {longest}"' if longest > FITS else ""
        return f'<div class="highlight"{style}>{block[1]}'

    if "body" in context:
        context["body"] = CODE.sub(columns, context["body"])


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", tell_columns)
