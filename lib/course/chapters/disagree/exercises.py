"""The grader of the lab on ranks that disagree: where their last calls part.

What is right is known because the mistake is planted.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from course.ask.table import Exercise, Table
from course.ask.verdict import draws, whole

Call = tuple[str, tuple[int, ...]]  # its name, and its tensor's shape
Records = list[list[Call]]  # each rank's calls, in its program's order
Part = tuple[int, list[int]] | None  # the number of a call, counted from 1, and ranks

STEP: list[Call] = [("all_reduce", (4810,)), ("all_reduce", (128,))]
USUAL: list[Call] = [*STEP, ("broadcast", (10,)), *STEP, ("barrier", ()), *STEP]

# What a rank does in place of a call and those after it.
MISTAKES: dict[str, Callable[[Call, list[Call]], list[Call]]] = {
    "another call": lambda call, after: [("reduce", call[1]), *after],
    "another shape": lambda call, after: [(call[0], (*call[1], 2)), *after],
    "a call left out": lambda _, after: after,
    "an early end": lambda *_: [],
    "a call too many": lambda call, after: [("all_gather", (1,)), call, *after],
}


class Planted(NamedTuple):
    """Records with a mistake, and where it is."""

    what: str
    records: Records
    right: Part


def plant(what: str, ranks: int, odd: Sequence[int], place: int) -> Planted:
    """Let the `odd` ranks go wrong at a place, counted from 0, and be one call off from there."""
    records = [list(USUAL) for _ in range(ranks)]
    for rank in odd:
        records[rank][place:] = MISTAKES[what](USUAL[place], USUAL[place + 1 :])
    told = f"{what} on rank {', '.join(map(str, odd))} of {ranks}"
    return Planted(told, records, (place + 1, sorted(odd)))


def _cases() -> list[Planted]:
    draw = draws(4)
    cases = [Planted(f"nothing wrong on {n} ranks", [list(USUAL)] * n, None) for n in (1, 2, 5)]
    cases.append(Planted("no calls at all", [[], [], []], None))
    for what in MISTAKES:
        cases += [plant(what, 3, [1], 2), plant(what, 4, [0], 5), plant(what, 3, [2], 0)]
        ranks = draw.randrange(5, 10)
        cases.append(plant(what, ranks, draw.sample(range(ranks), 2), draw.choice((2, 5))))
    return cases


@Exercise
def first_difference() -> Table:
    """Grade function(records): the first call at which ranks differ, and which of them are few.

    records[rank] is a list of (name, shape). The answer is (number, ranks), or None if all agree.
    """
    planted = {str(each.records): each for each in _cases()}

    def right(records: Records) -> Part:
        return planted[str(records)].right

    def names(records: Records) -> Part:
        """The answer from names alone, in two records of the same length."""
        usual = [[name for name, _ in own] for own in records]
        return None if all(own == usual[0] for own in usual) else right(records)

    def shortest(records: Records) -> Part:
        found = right(records)
        return None if found and found[0] > min(map(len, records)) else found

    def others(records: Records) -> Part:
        found = right(records)
        return found and (found[0], [r for r in range(len(records)) if r not in found[1]])

    return Table(
        cases=[(each.records,) for each in planted.values()],
        right=right,
        told=lambda records: f"With {planted[str(records)].what}",
        read=_part,
        expected="(number, list of ranks) or None",
        slips={
            "Compare shapes, too.": names,
            "A rank that never comes to a call differs, too.": shortest,
            "Calls are counted from 1.":
                lambda records: (found := right(records)) and (found[0] - 1, found[1]),
            "Those are the others: name the ranks that are few, and rank 0 may be one.": others,
        },
        otherwise=lambda answer, records: (
            "An earlier call differs: what follows is a consequence."
            if answer and (known := right(records)) and answer[0] > known[0]
            else ""
        ),
        solved="for {cases} records of 1 to 9 ranks: other calls, other shapes, calls left out "
        "or made twice, and ranks that ended early. What differs below the first row is only a "
        "consequence, which is why the error that you see is so often at another place.",
    )  # fmt: skip


def _part(answer: Any) -> Part:
    if answer is None:
        return None
    number, ranks = answer
    return whole(number), sorted(map(whole, ranks))
