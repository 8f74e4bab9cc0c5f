"""Tables in a notebook's output, and in the book."""

from collections.abc import Iterable, Sequence

from IPython.display import Markdown

DIGITS = 4  # of a number that is written with as many decimals as the others of its column


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markdown:
    """A table with these column names. Numbers stand to the right; a cell may be "" or "–"."""
    body = [list(row) for row in rows]
    columns = [[row[i] for row in body] for i in range(len(head))]
    numbers = (all(isinstance(cell, int | float) or cell in ("", "–") for cell in column)
               for column in columns)  # fmt: skip
    rule = ["---:" if number else "---" for number in numbers]
    lines = [head, rule, *zip(*map(_column, columns), strict=True)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return Markdown(text)  # type: ignore[no-untyped-call]


def folded(title: str, inner: Markdown) -> Markdown:
    """A table under a line that opens it."""
    text = f"<details>\n<summary>{title}</summary>\n\n{inner.data}\n\n</details>"
    return Markdown(text)  # type: ignore[no-untyped-call]


def _column(cells: Sequence[object]) -> list[str]:
    """The texts of cells, points below each other: 14.0 below 60.5, not 1.00000 below 0.00195."""
    texts = [_text(cell) for cell in cells]
    fractions = [number for number, cell in enumerate(cells) if isinstance(cell, float)]
    decimals = max((len(texts[number].partition(".")[2]) for number in fractions), default=0)
    aligned = {number: f"{cells[number]:.{decimals}f}" for number in fractions}
    digits = max(
        (sum(map(str.isdigit, text.lstrip("-0."))) for text in aligned.values()), default=0
    )
    if digits > DIGITS or any("e" in texts[number] for number in fractions):
        return texts
    return [aligned.get(number, text) for number, text in enumerate(texts)]


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
