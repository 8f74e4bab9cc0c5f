"""A training run that is interrupted at random."""

import numpy as np


def simulate(
    interval: float, save: float, mtbf: float, restart: float, intervals: int = 4000
) -> float:
    """Share of time lost, if failures come at random and restarts can fail, too."""
    random, clock = np.random.default_rng(0), 0.0
    for _ in range(intervals):
        while (fails := random.exponential(mtbf)) < interval + save:
            clock += fails
            while (fails := random.exponential(mtbf)) < restart:
                clock += fails
            clock += restart
        clock += interval + save
    return 1 - intervals * interval / clock
