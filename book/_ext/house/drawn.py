"""Pictures tell the page how wide they were drawn, so that a desk enlarges them and a phone fits.

`house.css` shows a picture at up to 1.4 times its size, where labels have 13 to 15 pixels, and
never so small that its smallest letters have less than ten. Labels are outlines, not text, so we
read both from the SVG.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils.nodes import document
from sphinx.application import Sphinx

LEGIBLE = 10.0  # pixels
POINT = 96 / 72  # pixels
IMAGE = re.compile(r'(<img [^>]*src="[^"]*/([^"/]+\.svg)")')
WIDTH = re.compile(r'<svg\b[^>]*? width="([\d.]+)pt"')
# Matplotlib draws a label from outlines of 100 points, made smaller: "scale(0.08 -0.08)".
LABEL = re.compile(r'<g [^>]*transform="translate\([^)]*\)[^"]* scale\((0?\.\d+) -0?\.\d+\)"')


@cache
def measures(path: Path) -> tuple[float, float] | None:
    """A picture's width and the size of its smallest letters, in pixels as it was drawn.

    None if matplotlib has not drawn it. A picture without letters can be as small as a phone needs.
    """
    text = path.read_text("utf-8")
    width = WIDTH.search(text)
    if not width:
        return None
    letters = [100 * float(scale) * POINT for scale in LABEL.findall(text)]
    return float(width[1]) * POINT, min(letters, default=float("inf"))


def tell_widths(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None
) -> None:
    """Write its widths into each picture's tag."""
    places = {name: Path(app.srcdir, uri) for uri, name in app.builder.images.items()}

    def widths(tag: re.Match[str]) -> str:
        found = measures(places[tag[2]]) if tag[2] in places else None
        if not found:
            return tag[1]
        drawn, letters = found
        least = drawn * LEGIBLE / letters
        return f'{tag[1]} style="--drawn: {drawn:.1f}px; --least: {least:.1f}px"'

    if "body" in context:
        context["body"] = IMAGE.sub(widths, context["body"])


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", tell_widths)
