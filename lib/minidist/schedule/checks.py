"""Numbers that a formula would take without complaint, and answer wrongly: refused by name."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex

from minidist.errors import ScheduleError


def whole_number(
    argument: str,
    value: SupportsIndex,
    least: int | None = None,
    error: type[ValueError] = ValueError,
) -> int:
    """`value` as an int, if it is a whole number; NumPy's ints are, a bool and a float are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}: expected a whole number, got {value!r}")
    number = operator.index(value)
    if least is not None and number < least:
        raise error(f"{argument} must be at least {least}, got {number}")
    return number


def at_least_one(argument: str, value: SupportsIndex) -> int:
    """`value` as an int; a ScheduleError if it is below 1."""
    return whole_number(argument, value, 1, ScheduleError)


def amount(argument: str, value: SupportsFloat) -> float:
    """`value` as a float, if it is a finite number and at least 0."""
    if not isinstance(value, SupportsFloat) or isinstance(value, bool):
        raise TypeError(f"{argument}: expected a number, got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{argument}: expected a finite number of at least 0, got {number}")
    return number
