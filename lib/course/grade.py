"""Graders: each tries a learner's function and says what a teacher would.

`grade.NAME(function)` returns a Verdict: not yet (an untouched stub), wrong (with a diagnosis) or
right (with what was just proven). What is right is never written down here: it comes from the
schedule, the simulator and the cost model.
"""

from __future__ import annotations

from course.grade_ring import ring_all_reduce
from course.grade_small import bytes_sent, crossover, slices

__all__ = ["bytes_sent", "crossover", "ring_all_reduce", "slices"]
