"""An all-reduce as it was measured, for a plan to take in place of what links promise."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.formulas import links
from minidist.schedule.checks import whole_number


@dataclass(frozen=True)
class AllReduceTimes:
    """An all-reduce as measured over so many ranks: its time at some sizes, straight in between.

    See `minidist.formulas.links.measured`. Two lines, or a whole table, are such points.
    """

    ranks: int
    points: Sequence[tuple[float, float]]  #: (bytes, seconds), by size

    def __post_init__(self) -> None:
        whole_number("ranks", self.ranks, 2)
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or min(map(min, self.points)) <= 0:
            raise ValueError("points: expected (bytes, seconds) above 0, each size once, in order")

    def seconds(self, nbytes: float) -> float:
        """Seconds of an all-reduce of so many bytes."""
        return links.measured(self.points, nbytes)
