"""Graders of the first chapter: numbers of other types."""

from typing import Any

import numpy as np

from course.graders import why as grade
from minidist.memory.state import OPTIMIZERS


def sized(policy: Any, optimizer: str) -> int:
    moments = OPTIMIZERS[optimizer] * policy.moments.itemsize
    master = policy.master.itemsize if policy.master else 0
    return int(policy.weights.itemsize + policy.gradients.itemsize + master + moments)


def test_numbers_of_other_types_are_right() -> None:
    assert grade.largest(lambda size, _, *how: np.int64(size // sized(*how)))
    assert grade.bytes_per_parameter(lambda *case: np.float32(sized(*case)))
    assert grade.seat(lambda rank, n: np.array(divmod(rank, n)))
