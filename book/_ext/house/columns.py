"""Code tells the page how long its longest line is, so that a desk can show all of it.

On a phone a line goes on below, further in than it began, and breaks where names do.
"""

import re
from html import unescape
from typing import Any

from docutils.nodes import document
from sphinx.application import Sphinx

CODE = re.compile(r'<div class="highlight">(<pre>(.*?)</pre>)', re.DOTALL)
RUNS = ("<pre><span></span>", "\n</pre>")  # around the lines of a block
TAG = re.compile(r"<[^>]*>")
INDENT = re.compile(r"(<span[^>]*>)?( +)(</span>)?")
BEFORE = re.compile(r'(?=<span class="o">\.</span>)')
AFTER = re.compile(r"(?<=[(\[{]</span>)")
FITS = 80  # columns for which there is always room


def tell_columns(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: document | None
) -> None:
    """Write the number of columns into the tag around each block of long lines."""

    def columns(block: re.Match[str]) -> str:
        longest = max(map(len, unescape(TAG.sub("", block[2])).splitlines()), default=0)
        style = f' style="--columns: {longest}"' if longest > FITS else ""
        return f'<div class="highlight"{style}>{in_lines(block[1])}'

    if "body" in context:
        context["body"] = CODE.sub(columns, context["body"])


def in_lines(block: str) -> str:
    """Each line in a tag that knows its indentation, with places where it may break."""
    first, last = RUNS
    if not (block.startswith(first) and block.endswith(last)):
        return block
    lines = block[len(first) : -len(last)].split("\n")
    return f"{first}{''.join(map(one_line, lines))}</pre>"


def one_line(line: str) -> str:
    within = style = ""
    if found := INDENT.match(line):
        tag, spaces, closed = found.groups()  # of a string over several lines they are a part
        within, style = f'<span class="in">{spaces}</span>', f' style="--in: {len(spaces)}"'
        line = ("" if closed else tag or "") + line[found.end() :]
    code = AFTER.sub("<wbr>", BEFORE.sub("<wbr>", line))
    return f'<span class="line"{style}>{within}{code}\n</span>'


def setup(app: Sphinx) -> None:
    app.connect("html-page-context", tell_columns)
