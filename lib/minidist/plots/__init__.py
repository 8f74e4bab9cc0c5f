"""Pictures. Each takes data that a run or a simulation produced and returns a matplotlib figure.

Nothing here knows an algorithm: what is drawn is what `simulate`, `cost` or a run put in.
"""

from minidist.plots.curves import Curve, curve_panels, curves
from minidist.plots.memory import memory_curve, stacked_bars
from minidist.plots.replay import before_after, trace
from minidist.plots.stepper import stepper
from minidist.plots.style import COLORS
from minidist.plots.timeline import gantt

__all__ = [
    "COLORS",
    "Curve",
    "before_after",
    "curve_panels",
    "curves",
    "gantt",
    "memory_curve",
    "stacked_bars",
    "stepper",
    "trace",
]
