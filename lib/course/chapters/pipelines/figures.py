"""Pipelines in time: who works on which micro-batch when."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course.drawing.boxes import box, rank_names, stacked, table_rows
from minidist.plots.style import LABEL, PART, PHASE
from minidist.schedule.pipeline import Order, Pass, most_held

LOOKS = {
    "F": PHASE["forward"],
    "B": PHASE["backward"],
    "I": PHASE["backward"],
    "W": PART["gradients"],
}
CHUNKS = 0.5, 0.2, 0.75  # opacity of a rank's first, second and third stage


def order_of(passes: Sequence[Pass]) -> Order:
    """The work of each rank, in its order."""
    ranks = 1 + max(each.rank for each in passes)
    timed = sorted(passes, key=lambda each: each.start)
    return [[each.work for each in timed if each.rank == rank] for rank in range(ranks)]


def pipelines(panels: Mapping[str, Sequence[Pass]]) -> Figure:
    """A panel for each: a row per rank, the number of each micro-batch, and the most it holds."""
    ranks = [len(order_of(passes)) for passes in panels.values()]
    end = max(each.end for passes in panels.values() for each in passes)
    figure, several = stacked(panels, (3.5, sum(0.24 * each + 0.42 for each in ranks)))
    for axes, passes in several:
        order = order_of(passes)
        for work, rank, start, until in passes:
            look = LOOKS[work.kind], CHUNKS[work.stage // len(order) % len(CHUNKS)]
            text = str(work.micro) if until - start >= 0.025 * end else ""
            box(axes, start, rank, until - start, 0.9, text, face=look, linewidth=0.5)
        for rank, most in enumerate(most_held(order)):
            axes.text(1.015 * end, rank + 0.45, f"holds {most}", va="center", fontsize=LABEL)
        table_rows(axes, rank_names(len(order)), 1.22 * end, left=0, offset=0.45)
    return figure
