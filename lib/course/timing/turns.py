"""Times of steps on several ranks, one kind after the other, and what ran when in them."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch.distributed as dist

from course.timing.progress import progress
from minidist.profiler.spans import Span
from minidist.profiler.timeline import timeline

WARM_UP = 3  # rounds that do not count


class Round(NamedTuple):
    """One step, in seconds of a clock that all ranks of a host share."""

    start: float
    end: float
    spans: list[Span]  # everything that was marked

    @property
    def ms(self) -> float:
        """Its time in milliseconds."""
        return 1e3 * (self.end - self.start)


def take_turns(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Round]]:
    """On a rank: run each step in turn, so that a busy moment of the machine hits all kinds alike.

    `steps`: by name, the same on all ranks; each is run `rounds` times.
    """
    took: dict[str, list[Round]] = {name: [] for name in steps}
    for turn in progress(range(1 - WARM_UP, rounds + 1), "rounds"):
        for name, step in steps.items():
            dist.barrier()
            with timeline() as line:
                start = time.monotonic()
                step()
                end = time.monotonic()
            if turn > 0:
                took[name].append(Round(start, end, line.spans))
    return took


def fastest(of_ranks: Sequence[Mapping[str, Sequence[Round]]]) -> dict[str, Round]:
    """The fastest round of each kind on all ranks: what slows one down is other work."""
    best = {}
    for name in of_ranks[0]:
        together = []
        for ranks in zip(*(took[name] for took in of_ranks), strict=True):
            starts, ends, spans = zip(*ranks, strict=True)
            together.append(Round(min(starts), max(ends), [*chain.from_iterable(spans)]))
        best[name] = min(together, key=lambda each: each.ms)
    return best
