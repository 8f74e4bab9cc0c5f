"""Questions about places: which node a rank is on, and its local rank there."""

from collections.abc import Callable
from typing import Any

from course.ask.table import Table
from course.ask.verdict import pair

Seat = tuple[int, int]  # the node, and the local rank


def seats(place: Callable[..., Seat], slips: dict[str, Callable[..., Seat]], **table: Any) -> Table:
    """A table that asks place(rank, ...), and knows more slips than those given."""
    return Table(
        right=place,
        read=pair,
        expected="(node, local rank)",
        slips={
            "The node comes first, then the local rank.": lambda *case: place(*case)[::-1],
            "Nodes and local ranks count from 0.":
                lambda *case: (place(*case)[0] + 1, place(*case)[1] + 1),
            "Local ranks count from 0.": lambda *case: (place(*case)[0], place(*case)[1] + 1),
            "That is the global rank; local ranks count from 0 on each node.":
                lambda rank, *where: (place(rank, *where)[0], rank),
            **slips,
        },
        **table,
    )  # fmt: skip
