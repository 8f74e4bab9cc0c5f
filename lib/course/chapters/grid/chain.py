"""A chain of questions: a reader's guess beside what is computed, and grids that others ran."""

from typing import Any

from course.ask.verdict import number
from course.interactive.guess import digits
from course.pages.published import named, published


def beside(answer: float, unit: str, guess: object = None) -> None:
    """Print an answer, and how far a guess was off; None is no guess."""
    text = f"{answer:,} {unit}" if isinstance(answer, int) else f"{digits(answer)} {unit}"
    if guess is not None:
        try:
            own = number(guess)
        except TypeError:
            text += f"; your guess, {guess!r:.40}, is no number"
        else:
            text += f"; you guessed {digits(own)}, {_off(own, answer)}"
    print(f"{text}.")


def _off(guess: float, answer: float) -> str:
    if guess * answer <= 0:
        return "which has another sign" if guess else "which is far from it"
    factor = guess / answer
    if 0.8 <= factor <= 1.25:
        return "which is close"
    more = factor > 1
    return f"{digits(max(factor, 1 / factor))} times too {'much' if more else 'little'}"


def llama3(**fields: int) -> dict[str, Any]:
    """The row of Llama 3's table of grids that has these fields, with its MFU, of 1."""
    record = published("grids_others")
    rows = named(record["columns"], record["rows"])
    own = [row for row in rows if row["source"] == "llama3"]
    (stated,) = (
        fact["value"]
        for fact in record["facts"]
        if fact["source"] == "llama3" and "MFU" in fact["what"]
    )
    every = [row | {"mfu": mfu / 100} for row, mfu in zip(own, stated, strict=True)]
    (found,) = (row for row in every if fields.items() <= row.items())
    return found
