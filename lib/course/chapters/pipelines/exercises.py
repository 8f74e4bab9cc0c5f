"""Graders of the lab on pipelines: orders by replay, the bubble by its price."""

from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import Any

from course.ask.table import Exercise, Table
from course.ask.verdict import Wrong, ask_as, draws, formula, many, number, whole
from minidist.errors import ScheduleError
from minidist.schedule import pipeline
from minidist.schedule.pipeline import Order, Work, bubble, interleaved, most_held, replay

OfRank = Callable[[int, int, int], Iterable[tuple[str, int]]]


@formula
def one_f_one_b(function: OfRank) -> str:
    """Grade function(rank, ranks, micro): what a rank does in 1F1B, as ("F", m) and ("B", m)."""
    for ranks, micro in (cases := _cases(29)):
        where, order = _asked(function, ranks, micro, "FB")
        right = pipeline.one_f_one_b(ranks, micro)
        ahead = [len([*takewhile(lambda work: work.kind == "F", own)]) for own in order]
        hint = (
            f"Before their first B, ranks 0, 1 ... do {', '.join(map(str, ahead))} F. "
            "A rank waits while it could work. How far it runs ahead, the ranks behind it decide."
        )
        _check_time(where, order, right, hint)
        held = most_held(order)
        for rank, (most, least) in enumerate(zip(held, most_held(right), strict=True)):
            if most > least:
                named = "That is GPipe. " if held == [micro] * ranks else ""
                raise Wrong(
                    f"{where}rank {rank} holds {many(most, 'micro-batch')} at once, where {least} "
                    f"would do. {named}Go ahead only until the first gradient is back, then do one "
                    "of each."
                )
    return (
        f"for {len(cases)} pipelines of up to {max(cases)[0]} ranks: nobody waits in a circle, the "
        "bubble is no larger than GPipe's, and rank r never holds more than N - r micro-batches, "
        "however many there are."
    )


@formula
def zero_bubble(function: OfRank) -> str:
    """Grade function(rank, ranks, micro): backward comes in two pieces, ("I", m) and ("W", m)."""
    for ranks, micro in (cases := _cases(30)):
        where, order = _asked(function, ranks, micro, "FIW")
        right, held = pipeline.zero_bubble(ranks, micro), most_held(order)
        if (most := max(held)) > (room := max(most_held(right))):
            raise Wrong(
                f"{where}rank {held.index(most)} holds {many(most, 'micro-batch')} at once, and "
                f"1F1B never more than {room}. A micro-batch is held until its W, so not all W can "
                "come last."
            )
        if order == _right_away(ranks, micro):
            hint = "That is 1F1B, in smaller pieces: each W right after its I. Put some off."
        else:
            hint = "F and I come first, since another rank waits for them; W fills the gaps."
        _check_time(where, order, right, hint)
    return (
        f"for {len(cases)} pipelines of up to {max(cases)[0]} ranks: with at least as many micro-"
        "batches as ranks, a rank waits N - 1 times a forward, a third of what it does in 1F1B, "
        "and none holds more than N micro-batches."
    )


def _cases(place: int) -> list[tuple[int, int]]:
    """Ranks and micro-batches: more, as many, fewer, one."""
    draw = draws(place)
    drawn = [(draw.randrange(5, 12), draw.randrange(12, 25)) for _ in range(3)]
    return [(4, 8), (2, 2), (3, 7), *drawn, (1, 3), (8, 3), (6, 1)]


def _asked(function: OfRank, ranks: int, micro: int, kinds: str) -> tuple[str, Order]:
    """The beginning of a verdict, and the order on each rank, which a replay has proven."""
    where = f"With {many(ranks, 'rank')} and {many(micro, 'micro-batch')}, "
    pairs = " or ".join(f'("{kind}", m)' for kind in kinds)

    def listed(*sizes: int) -> Any:
        answer: Any = function(*sizes)
        return [*islice(answer, 9 * micro)] if hasattr(answer, "__iter__") else answer

    def read(answer: Any) -> list[tuple[str, int]]:
        found = [(kind, whole(m)) for kind, m in answer]
        if any(kind not in [*kinds] or not 0 <= m < micro for kind, m in found):
            raise ValueError
        return found

    order = []
    for rank in range(ranks):
        expected = f"a list of {pairs}, with m from 0 to {micro - 1}"
        case = f"{where}on rank {rank}, "
        found = ask_as(read, expected, listed, rank, ranks, micro, case=case)
        order.append([Work(kind, rank, m) for kind, m in found])
        if left := {Work(k, rank, m) for k in kinds for m in range(micro)} - {*order[-1]}:
            raise Wrong(f'{where}rank {rank} never does ("{min(left).kind}", {min(left).micro}).')
    try:
        replay(order)
    except ScheduleError as error:
        named = f"({kinds[1]}(0, 1) is stage 0's {kinds[1]} with micro-batch 1.)"
        raise Wrong(f"{where}{error}. {named}") from error
    return where, order


def _check_time(where: str, order: Order, right: Order, hint: str) -> None:
    """Raise if an order takes longer than the right one, where a forward takes 1."""
    took, least = (max(each.end for each in replay(every)) for every in (order, right))
    if took > least:
        raise Wrong(
            f"{where}a step takes {took:g} times a forward, and {least:g} would do: backward "
            f"takes 2, or 1 and 1. {hint}"
        )


def _right_away(ranks: int, micro: int) -> Order:
    """1F1B with each backward in two pieces, one right after the other."""
    pieces = {"F": "F", "B": "IW"}
    order = pipeline.one_f_one_b(ranks, micro)
    return [[Work(piece, *rest) for k, *rest in own for piece in pieces[k]] for own in order]


@Exercise
def bubble_share() -> Table:
    """Grade function(ranks, micro, chunks): the share of a step in which a rank waits."""
    draw = draws(31)
    drawn = [
        (n, n * draw.randrange(1, 6), draw.randrange(2, 7)) for n in draw.sample(range(3, 20), 4)
    ]

    def right(n: int, m: int, v: int) -> float:
        return bubble(replay(interleaved(n, m, v), {"F": 1 / v, "B": 2 / v}))

    return Table(
        cases=[(4, 8, 2), (4, 8, 1), (16, 16, 8), (8, 64, 1), (2, 4, 3), *drawn, (1, 5, 2)],
        right=right,
        told="For {} ranks, {} micro-batches and {} chunks of the model on each rank",
        read=number,
        expected="a number from 0 to 1",
        same=lambda answer, expected: abs(answer - expected) <= 1e-6,
        show=lambda value: f"{value:.4g}",
        slips={
            "That is the share without interleaving: the waits are v times as short.":
                lambda n, m, v: (n - 1) / (m + n - 1),
            "That compares the waits with the work, m; the share is of both together.":
                lambda n, m, v: (n - 1) / (v * m),
            "The waits are v times as short, and the work is not: divide N - 1 alone.":
                lambda n, m, v: (n - 1) / (m + n - 1) / v,
            "A rank waits for the N - 1 others, not for itself.":
                lambda n, m, v: n / (v * m + n),
            "That is the share in which it works.": lambda n, m, v: v * m / (v * m + n - 1),
            "More chunks mean shorter waits, not longer ones.":
                lambda n, m, v: v * (n - 1) / (m + v * (n - 1)),
            "Forward and backward are in both the waits and the work: nothing counts twice.":
                lambda n, m, v: 2 * (n - 1) / (v * m + 2 * (n - 1)),
        },
        solved="for {cases} pipelines: the replay of the interleaved order says the same. A "
        "bubble shrinks with more micro-batches, or with more chunks and so more messages.",
    )  # fmt: skip
