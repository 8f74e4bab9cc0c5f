"""Tables in a notebook's output, and in the book."""

from collections.abc import Iterable, Sequence

from IPython.display import Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markdown:
    """A table with these column names. Numbers stand to the right; a cell may be "" or "–"."""
    body = [list(row) for row in rows]
    numbers = [all(isinstance(row[i], int | float) or row[i] in ("", "–") for row in body)
               for i in range(len(head))]  # fmt: skip
    lines = [head, ["---:" if number else "---" for number in numbers], *body]
    text = "\n".join(f"| {' | '.join(map(_text, line))} |" for line in lines)
    return Markdown(text)  # type: ignore[no-untyped-call]


def folded(title: str, inner: Markdown) -> Markdown:
    """A table under a line that opens it."""
    text = f"<details>\n<summary>{title}</summary>\n\n{inner.data}\n\n</details>"
    return Markdown(text)  # type: ignore[no-untyped-call]


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
