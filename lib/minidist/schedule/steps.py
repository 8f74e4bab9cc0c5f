"""Training steps as data: lists of work for `minidist.schedule.lanes`.

A GPU computes on the lane "compute"; its collectives take turns on "network", and under hybrid
sharding those between nodes on "between". Times are in seconds, or in any unit.

Imports nothing but `lanes`, so that it also runs in a page of the book.
"""

from __future__ import annotations

from minidist.schedule.lanes import Work

COMPUTE, NETWORK, BETWEEN = "compute", "network", "between"


# ---- buckets ----


def bucketed(
    ready: list[float],
    buckets: list[list[int]],
    seconds: list[float],
    kind: str = "all-reduce",
    early: bool = True,
) -> list[Work]:
    """Backward, whose gradients travel bucket by bucket.

    Args:
        ready: when backward, which begins at 0, has made each gradient.
        buckets: indexes of gradients that travel together, in the order in which they leave.
        seconds: of each bucket's collective.
        kind: of the collective.
        early: whether a bucket leaves as soon as it is full, or only after backward.

    Returns:
        Backward in pieces, one up to each bucket, and then the collectives, one for each.
    """
    whole, clock = max(ready), 0.0
    works: list[Work] = []
    for bucket in buckets:
        full = max([ready[index] for index in bucket])
        works.append(Work(COMPUTE, "backward", max(0.0, full - clock), []))
        clock = max(clock, full)
    works.append(Work(COMPUTE, "backward", whole - clock, []))
    for place, takes in enumerate(seconds):
        after = place if early else len(buckets)
        works.append(Work(NETWORK, kind, takes, [after], str(place + 1)))
    return works


# ---- units ----


class Unit:
    """Seconds of a unit under FSDP: to compute, to gather its weights, to reduce its gradients.

    `across`: of the all-reduce between nodes that follows under hybrid sharding.
    """

    def __init__(
        self, forward: float, backward: float, gather: float, reduce: float, across: float = 0.0
    ) -> None:
        self.forward, self.backward, self.gather = forward, backward, gather
        self.reduce, self.across = reduce, across


def sharded(
    root: Unit | None, units: list[Unit], ahead: list[int], keep: bool = False
) -> list[Work]:
    """Forward and backward under FSDP, unit by unit.

    A unit computes when its weights are there. Its gather begins when the unit before it has
    computed, or so many units earlier (`ahead`, in forward and in backward). The root
    has the embedding and the head: it is gathered first, stays, computes last in forward and first
    in backward, and reduces its gradients at the end.

    Args:
        root: the outermost unit; None if there is nothing in it.
        units: in the order of forward.
        ahead: units that are gathered before their turn, in forward and in backward.
        keep: whether weights stay from forward on (`reshard_after_forward=False`).
    """
    works: list[Work] = []
    there: list[list[int]] = [[] for _ in units]  # what a unit's compute waits for
    last: list[int] = []
    if root is not None:
        last = _add(works, NETWORK, "all-gather", root.gather, [], "root")
    last = _passes(works, units, there, "forward", ahead[0], last, last, False)
    before = last
    if root is not None:
        before = _add(works, COMPUTE, "forward", root.forward, last, "root")
        last = _add(works, COMPUTE, "backward", root.backward, before, "root")
    last = _passes(works, units, there, "backward", ahead[1], before, last, keep)
    if root is not None:
        _reduce(works, root, last, "root")
    return works


def _add(
    works: list[Work], lane: str, kind: str, takes: float, after: list[int], text: str
) -> list[int]:
    """Add a piece of work; return its place, as another that comes after it wants it."""
    works.append(Work(lane, kind, takes, after, text))
    return [len(works) - 1]


def _reduce(works: list[Work], unit: Unit, after: list[int], text: str) -> None:
    """Add what a unit's gradients take on their way."""
    sent = _add(works, NETWORK, "reduce-scatter", unit.reduce, after, text)
    if unit.across > 0:
        _add(works, BETWEEN, "all-reduce", unit.across, sent, text)


def _passes(
    works: list[Work],
    units: list[Unit],
    there: list[list[int]],
    kind: str,
    ahead: int,
    before: list[int],
    last: list[int],
    keep: bool,
) -> list[int]:
    """Add a pass through all units; return the place of its last computation.

    `last`: the computation before the pass, and `before` the one before that, after which the
    first gathers may begin; `there`: of each unit its gather, which is renewed.
    """
    forward = kind == "forward"
    order = [place if forward else len(units) - 1 - place for place in range(len(units))]
    wanted = 0  # units of the order whose gather has been launched
    for turn, number in enumerate(order):
        while not keep and wanted < len(order) and wanted <= turn + ahead:
            index, after = order[wanted], before if wanted < ahead else last
            there[index] = _add(
                works, NETWORK, "all-gather", units[index].gather, after, str(index)
            )
            wanted += 1
        takes = units[number].forward if forward else units[number].backward
        last = _add(works, COMPUTE, kind, takes, there[number] + last, str(number))
        if not forward:
            _reduce(works, units[number], last, str(number))
    return last
