"""Pages carry what they use: of the theme's 2,045 icons a dozen, of a coordinate what one sees."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

ICONS = Path("_static", "scripts", "fontawesome.js")
# An icon: its name, size, other names, character, outline.
ICON = re.compile(r'("?)([a-z0-9-]+)\1:\[\d+,\d+,\[[^\]]*\],"[a-f0-9]*",(?:"[^"]*"|\[[^\]]*\])\],?')
USE = re.compile(r"\bfa-([a-z0-9-]+)")


def drop_icons(app: Sphinx, error: Exception | None) -> None:
    """Remove the icons that no page and no script of the theme names."""
    file = Path(app.outdir, ICONS)
    if error or app.builder.format != "html" or not file.exists():
        return
    pages = [*Path(app.outdir).rglob("*.html"), *file.parent.glob("*theme.js")]
    used = {name for page in pages for name in USE.findall(page.read_text("utf-8"))}
    text = file.read_text("utf-8")
    kept = ICON.sub(lambda icon: icon[0] if icon[2] in used else "", text)
    if not used & {icon[2] for icon in ICON.finditer(kept)}:
        logger.warning("the theme's icons are no longer where %s looks for them", __name__)
        return
    file.write_text(kept, "utf-8")


def drop_mathjax(
    app: Sphinx, page: str, template: str, context: dict[str, Any], *_: object
) -> None:
    """Leave MathJax out of a page without formulas: Sphinx adds it above pages that have some."""
    if 'class="math ' not in context.get("body", ""):
        context["script_files"][:] = [
            script
            for script in context["script_files"]
            if "mathjax" not in f"{script.filename}{script.attributes.get('body')}".lower()
        ]


OUTLINE = re.compile(r' d="([^"]*)"')
DIGITS = re.compile(r"-?\d+\.\d{3,}")


def shorten_outlines(app: Sphinx, error: Exception | None) -> None:
    """Write coordinates of pictures in hundredths of a point, where matplotlib has millionths."""
    if error or app.builder.format != "html":
        return
    for file in Path(app.outdir, app.builder.imagedir).glob("*.svg"):
        text = file.read_text("utf-8")
        file.write_text(OUTLINE.sub(lambda found: f' d="{short(found[1])}"', text), "utf-8")


def short(outline: str) -> str:
    """The outline with fewer digits, in one line.

    Example:
        >>> short("M 1.234567 20\\nL 0.500001 3 ")
        'M 1.23 20 L 0.5 3'
    """
    rounded = DIGITS.sub(lambda number: f"{round(float(number[0]), 2):g}", outline)
    return " ".join(rounded.split())


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", drop_mathjax, priority=900)  # after Sphinx has added it
    app.connect("build-finished", drop_icons)
    app.connect("build-finished", shorten_outlines)
