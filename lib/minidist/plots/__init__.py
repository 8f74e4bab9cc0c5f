"""Pictures. Each takes data that a run or a simulation produced and returns a matplotlib figure.

Nothing here knows an algorithm: what is drawn is what a replay, a price or a run put in.
"""

from minidist.plots.charts import gantt, memory_curve
from minidist.plots.replay import stepper, trace
from minidist.plots.style import COLORS

__all__ = ["COLORS", "gantt", "memory_curve", "stepper", "trace"]
