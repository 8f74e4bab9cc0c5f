"""Which unit comes next.

[Note: the order of units] Nothing says in advance which unit runs next, but a step is like the one
before. So the order of the units is recorded as they run, and in the next forward each unit starts
the all-gather of the one that followed it then. Backward takes the order of the forward just run,
from its end. A wrong guess costs an all-gather, whose result is freed unused. All ranks guess
alike, because their orders are alike.
"""

from __future__ import annotations

from typing import Generic, TypeVar

U = TypeVar("U")


class UnitOrder(Generic[U]):
    """The order in which units ran, and hence which one is likely to be next."""

    def __init__(self) -> None:
        self._forward: list[U] = []  # as far as the present forward has come
        self._previous: list[U] = []  # the whole forward before
        self._finished: list[U] = []  # in the order in which their forwards ended, if they train
        self._before: dict[U, U] = {}

    def begin_forward(self) -> None:
        """A forward of the outermost unit begins."""
        self._forward, self._finished = [], []

    def record_forward(self, unit: U) -> None:
        """A unit's forward begins."""
        self._forward.append(unit)

    def record_backward(self, unit: U) -> None:
        """A unit's forward has ended, and backward will come to it."""
        self._finished.append(unit)

    def end_forward(self) -> None:
        """The outermost unit's forward has ended."""
        self._previous = self._forward
        self._before = dict(zip(self._finished[1:], self._finished, strict=False))

    def after(self, unit: U) -> U | None:
        """The unit that is likely to follow in forward; None if the last forward does not tell."""
        place = len(self._forward)
        likely = place < len(self._previous) and self._previous[place - 1] is unit
        return self._previous[place] if likely else None

    def before(self, unit: U) -> U | None:
        """The unit that backward is likely to reach next."""
        return self._before.get(unit)
