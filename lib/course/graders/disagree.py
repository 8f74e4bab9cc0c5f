"""The grader of the lab on ranks that disagree: where their last calls part.

What is right is known because the mistake is planted.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from course.verdict import Wrong, ask_as, formula, whole

__all__ = ["first_difference"]

Call = tuple[str, tuple[int, ...]]  # its name, and its tensor's shape
Records = list[list[Call]]  # of each rank, in its program's order
Part = tuple[int, list[int]] | None  # the number of a call, counted from 1, and ranks

USUAL: list[Call] = [
    ("all_reduce", (4810,)),
    ("all_reduce", (128,)),
    ("broadcast", (10,)),
    ("all_reduce", (4810,)),
    ("all_reduce", (128,)),
    ("barrier", ()),
    ("all_reduce", (4810,)),
    ("all_reduce", (128,)),
]


class Planted(NamedTuple):
    """Records with a mistake, and where it is."""

    what: str
    records: Records
    right: Part


def plant(what: str, ranks: int, odd: Sequence[int], place: int) -> Planted:
    """Let the `odd` ranks go wrong at a place, counted from 0, and be one call off from there."""
    records = [list(USUAL) for _ in range(ranks)]
    for rank in odd:
        before, (name, shape), after = USUAL[:place], USUAL[place], USUAL[place + 1 :]
        other: dict[str, list[Call]] = {
            "another call": [("reduce", shape), *after],
            "another shape": [(name, (*shape, 2)), *after],
            "a call left out": after,
            "an early end": [],
            "a call too many": [("all_gather", (1,)), (name, shape), *after],
        }
        records[rank] = before + other[what]
    return Planted(f"{what} on rank {', '.join(map(str, odd))} of {ranks}", records,
                   (place + 1, sorted(odd)))  # fmt: skip


def _cases() -> list[Planted]:
    draw = Random(4)
    cases = [Planted(f"nothing wrong on {n} ranks", [list(USUAL)] * n, None) for n in (1, 2, 5)]
    cases.append(Planted("no calls at all", [[], [], []], None))
    kinds = "another call", "another shape", "a call left out", "an early end", "a call too many"
    for what in kinds:
        cases += [plant(what, 3, [1], 2), plant(what, 4, [0], 5), plant(what, 3, [2], 0)]
        ranks = draw.randrange(5, 10)
        cases.append(plant(what, ranks, draw.sample(range(ranks), 2), draw.choice((2, 5))))
    return cases


@formula
def first_difference(function: Callable[[Records], Part]) -> str:
    """Grade function(records): the first call at which ranks differ, and which of them are few.

    records[rank] is a list of (name, shape). The answer is (number, ranks), or None if all agree.
    """
    cases = _cases()
    for what, records, right in cases:
        case, expected = f"With {what} ", "(number, list of ranks) or None"
        copies = [list(own) for own in records]
        answer = ask_as(_part, expected, function, copies, case=case)
        if copies != records:
            raise Wrong(f"{case}the records are changed; read them only.")
        if answer != right:
            raise Wrong(f"{case}you say {answer}; it is {right}.{_why(answer, right, records)}")
    return (
        f"for {len(cases)} records of 1 to 9 ranks: other calls, other shapes, calls left out "
        "or made twice, and ranks that ended early. What differs below the first row is only a "
        "consequence, which is why the error that you see is so often at another place."
    )


def _part(answer: Any) -> Part:
    if answer is None:
        return None
    number, ranks = answer
    return whole(number), sorted(map(whole, ranks))


def _why(answer: Part, right: Part, records: Records) -> str:
    """A guess at the mistake, after a blank; "" if there is none."""
    if right is None or answer is None:
        if right and all(
            len({own[n] for own in records}) == 1 for n in range(min(map(len, records)))
        ):
            return " A rank that never comes to a call differs, too."
        names = [[name for name, _ in own] for own in records]
        return " Compare shapes, too." if right and all(n == names[0] for n in names) else ""
    number, ranks = right
    if answer[0] == number - 1:
        return " Calls are counted from 1."
    if answer[0] > number:
        return " An earlier call differs: what follows is a consequence."
    others = [rank for rank in range(len(records)) if rank not in ranks]
    if answer[1] == others:
        return " Those are the others: name the ranks that are few, and rank 0 may be one."
    return ""
