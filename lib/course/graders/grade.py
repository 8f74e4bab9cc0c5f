"""Graders: each tries a learner's function and says what a teacher would.

`grade.NAME(function)` returns a Verdict: not yet (an untouched stub), wrong (with a diagnosis) or
right (with what was just proven). What is right is never written down here: it comes from the
schedule, the simulator and the cost model.
"""

from __future__ import annotations

from course.graders.ring import ring_all_reduce
from course.graders.small import bytes_sent, crossover, slices
from course.graders.which import between_nodes, crossing, recursive_doubling, segments
from course.graders.why import bytes_per_parameter, largest, seat

__all__ = [
    "between_nodes",
    "bytes_per_parameter",
    "bytes_sent",
    "crossing",
    "crossover",
    "largest",
    "recursive_doubling",
    "ring_all_reduce",
    "seat",
    "segments",
    "slices",
]
