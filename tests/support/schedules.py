"""Schedules written down message by message."""

from collections.abc import Iterable

import numpy as np

from minidist.schedule.schedule import Send, Step


def step_of(sends: Iterable[Send]) -> Step:
    return Step.of(*np.array(list(sends), dtype=np.int64).reshape(-1, 5).T)
