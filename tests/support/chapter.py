"""What the cells of a chapter define, run without the book."""

import re
from pathlib import Path
from typing import Any

BOOK = Path(__file__).parents[2] / "book"


def names_in(chapter: str, cells: dict[str, str | None]) -> dict[str, Any]:
    """Run the one cell that contains each text, up to another one; without tables and magic."""
    source = (BOOK / chapter).read_text()
    every = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```", source, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for text, end in cells.items():
        (found,) = (cell for cell in every if text in cell)
        lines = found.splitlines()
        code = [line for line in lines if not line.startswith((":", "%", "table("))]
        exec("\n".join(code).partition(end)[0] if end else "\n".join(code), names)
    return names
