"""Numbers that a formula would take without complaint, and answer wrongly: refused by name."""

import math
import operator
from typing import SupportsFloat, SupportsIndex


def whole_number(argument: str, value: SupportsIndex, least: int | None = None) -> int:
    """`value` as an int, if it is a whole number; NumPy's ints are, a bool and a float are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}: expected a whole number, got {value!r}")
    number = operator.index(value)
    if least is not None and number < least:
        raise ValueError(f"{argument} must be at least {least}, got {number}")
    return number


def amount(argument: str, value: SupportsFloat) -> float:
    """`value` as a float, if it is a finite number and at least 0."""
    if isinstance(value, str | bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{argument}: expected a number, got {value!r}")
    if not (math.isfinite(value) and float(value) >= 0):
        raise ValueError(f"{argument}: expected a finite number of at least 0, got {value}")
    return float(value)
