r"""The ledgers of wrong answers in `tests/wrong`: a line each, beside the right answer.

A ledger has a section for each task, under `== task`, with rows

    kind | old => new | diagnosis

`old` stands in the right answer once, wherever lines are broken in it, and `new` stands in its
place; `\n` in `new` begins a line that is as far in as the one where `old` begins. `&&` joins
changes, and `= other` is an answer that is no change of the right one. The diagnosis is a regular
expression for what the reader is told. An indented line belongs to the one before.
"""

import re
from pathlib import Path
from typing import NamedTuple

WRONG = Path(__file__).parents[1] / "wrong"


class Row(NamedTuple):
    """One wrong answer; of kind "right", another right one."""

    kind: str
    change: str
    diagnosis: str


def sections(ledger: str) -> dict[str, list[Row]]:
    """The rows of each task in the ledger of this name."""
    path = WRONG / f"{ledger}.txt"
    _, *parts = re.split(r"^== ", path.read_text() if path.exists() else "", flags=re.M)
    found = {}
    for part in parts:
        task, *rows = re.sub(r"\n +", " ", part.strip()).split("\n")
        found[task] = [row(line) for line in filter(None, rows)]
    return found


def row(line: str) -> Row:
    """A row of a ledger, from its line."""
    parts = re.split(r" \| ?", line, maxsplit=2)
    assert len(parts) == 3, f"not `kind | change | diagnosis`: {line}"
    return Row(*parts)


def changed(right: str, change: str) -> str:
    """A right answer with changes `old => new`, each of which fits in one place; or `= other`."""
    if change.startswith("= "):
        return lines(change[2:]) + "\n"
    for each in change.split(" && "):
        old, *new = re.split(r" => ?", each, maxsplit=1)
        assert new, f"not `old => new`: {each}"
        places = [*re.finditer(r"\s+".join(map(re.escape, old.split())), right)]
        assert len(places) == 1, f"the right answer has this {len(places)} times, not once: {old}"
        start, end = places[0].span()
        line = right[:start].rpartition("\n")[2]
        margin = "\n" + line[: len(line) - len(line.lstrip())]
        right = right[:start] + lines(new[0], margin) + right[end:]
    return right


def lines(code: str, margin: str = "\n") -> str:
    r"""Code of a ledger, whose lines begin with `\n`."""
    return re.sub(r" ?\\n", lambda _: margin, code)
