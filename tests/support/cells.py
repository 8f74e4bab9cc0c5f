"""The code cells of a chapter, for tests of what they define."""

import re
from functools import cache
from pathlib import Path

BOOK = Path(__file__).parents[2] / "book"
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```", re.DOTALL | re.MULTILINE)


@cache
def cell_with(chapter: str, text: str) -> str:
    """The one cell that has this text, without its tags and what it shows."""
    (found,) = (cell for cell in CELL.findall((BOOK / f"{chapter}.md").read_text()) if text in cell)
    lines = found.splitlines()
    return "\n".join(line for line in lines if not line.startswith((":", "%", "table(")))
