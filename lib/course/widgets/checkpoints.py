"""How often to save a checkpoint, when something fails now and then: Daly's model (2006)."""

import math
from typing import NamedTuple

from course.widgets.page import Slider, control, rank_stops, seconds_text

MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86_400.0, 365 * 86_400.0
UNITS = ((DAY, "days"), (HOUR, "h"), (MINUTE, "min"), (0.0, "s"))


class Lost(NamedTuple):
    """The shares of a run's time that train nothing new."""

    saving: float
    again: float  #: waiting for the restart, and doing again what was not saved

    @property
    def total(self) -> float:
        """All of it."""
        return self.saving + self.again


def lost(interval: float, save: float, mtbf: float, restart: float) -> Lost:
    """What is lost when failures come at random, on average one in `mtbf` seconds on all ranks.

    `interval`: seconds of training from save to save, which takes `save` seconds; `restart`:
    seconds from a failure until training goes on.
    """
    exponent = (interval + save) / mtbf
    if restart / mtbf + exponent > 700:  # it would never get that far
        return Lost(0.0, 1.0)
    took = mtbf * math.exp(restart / mtbf) * math.expm1(exponent)
    useful, saving = interval / took, save / took
    return Lost(saving, 1 - useful - saving)


def best_interval(save: float, mtbf: float) -> float:
    """The interval that loses least: where (1 - x) e^x = e^(-save/mtbf), for x = interval/mtbf."""
    low, high, goal = 0.0, 1.0, math.exp(-save / mtbf)
    for _ in range(60):
        x = (low + high) / 2
        low, high = (x, high) if (1 - x) * math.exp(x) > goal else (low, x)
    return mtbf * low


def rule_of_thumb(save: float, mtbf: float) -> float:
    """Young's first-order answer (1974): sqrt(2 * save * mtbf)."""
    return math.sqrt(2 * save * mtbf)


def checkpoint_slider() -> Slider:
    """The share of time lost over the interval between checkpoints, and where it is least."""
    counts = [n for n in rank_stops() if n >= 8]
    each = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
    saves = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0]
    restarts = [10.0, 30.0, *(MINUTE * minutes for minutes in (1, 2, 5, 10, 20, 30, 60))]
    controls = [
        control("gpus", "GPUs", counts, 4096),
        control("years", "A GPU fails once in", each, 5.0, "{:g} years".format),
        control("save", "A save stops training for", saves, 30.0, time_text),
        control("restart", "A restart takes", restarts, 10 * MINUTE, time_text),
    ]
    title = "Time lost to failures and to checkpoints"
    return Slider("checkpoints", title, controls, {"year": YEAR})


def time_text(seconds: float) -> str:
    """12 min, with three digits at most; below a tenth of a second, 12.8 ms."""
    if seconds < 0.1:
        return seconds_text(seconds)
    unit, name = next((unit, name) for unit, name in UNITS if seconds >= unit)
    value = seconds / (unit or 1)
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
