"""Answers that readers may give to the puzzles, and what they should be told: a ledger, read."""

from course.puzzles.catalog import PUZZLES
from tests.support.ledger import changed, sections

LEDGER = sections("puzzles")
# What the judge says of the code that a puzzle begins with, and the stars it has.
STUBS = {name: (stub.diagnosis, int(stub.kind[-1])) for name, (stub, *_) in LEDGER.items()}


# Code, and what it says of that, or beside a star that it lacks; both are regular expressions.
def changes(*kinds: str) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [
            (changed(PUZZLES[name].solution, row.change), row.diagnosis)
            for row in rows
            if row.kind in kinds
        ]
        for name, (_, *rows) in LEDGER.items()
    }


WRONG, LOST = changes("mistake"), changes("lost")
