"""Answers that readers may give to the puzzles, and what they should be told: a ledger, read."""

from course.puzzles.catalog import PUZZLES
from tests.support.ledger import Row, changed, lines, sections

LEDGER = sections("puzzles")


def code(name: str, row: Row) -> str:
    """What a row hands in."""
    if row.change.startswith("="):
        return lines(row.change.removeprefix("= ")) + "\n"
    return changed(PUZZLES[name].solution, row.change)


# What the judge says of the code that a puzzle begins with, and the stars it has.
STUBS = {name: (stub.diagnosis, int(stub.kind[-1])) for name, (stub, *_) in LEDGER.items()}
# Code, and what it says of that; both sentences are regular expressions.
WRONG = {
    name: [(code(name, row), row.diagnosis) for row in rows] for name, (_, *rows) in LEDGER.items()
}
