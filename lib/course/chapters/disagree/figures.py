"""Pictures of ranks that disagree: their last calls, and how far they drift apart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from course.drawing.sketches import timeline
from minidist.diagnose.records import Rank, RecordedCall
from minidist.plots import style
from minidist.plots.cells import Cell, cells, lanes, of_ranks
from minidist.plots.curves import Look, curves, of_steps
from minidist.plots.style import COLORS, box

WRONG = COLORS[1]
KINDS = {  # what rank 1 does, and what ranks 0 and 2 do, as `timeline` has it
    "Loud: somebody gets an error": ("1 Σ 2 Σ ✕_dies", "1 Σ 2 Σ 3 Σ? error"),
    "Hang: nobody gets an error": ("1 Σ 2 Σ elsewhere", "1 Σ 2 Σ 3 Σ_waits_…?"),
    "Silent drift: everybody goes on": ("1 Σ 2 Σ 3' Σ 4' Σ 5' Σ", "1 Σ 2 Σ 3 Σ 4 Σ 5 Σ"),
}


def disagreements() -> Figure:
    """A timeline for each kind, of five steps on three ranks. A sketch, no timing."""
    panels = {}
    for title, (second, others) in KINDS.items():
        panels[title] = of_ranks(map(timeline, (others, second, others)))
    return lanes(panels, (3.4, 5.1))


class Run(NamedTuple):
    """The mean loss of each step, and how far apart the ranks' weights are after it."""

    loss: Sequence[float]
    apart: Sequence[float]


def drift(runs: Mapping[str, Run], change: int) -> Figure:
    """Loss and drift over the steps, a line for each run; `change`: when one rank was changed."""
    panels = {
        "loss, all runs": of_steps({name: run.loss for name, run in runs.items()}),
        "largest difference of a weight": of_steps({name: run.apart for name, run in runs.items()}),
    }
    unnamed = [curve._replace(label="") for curve in panels["loss, all runs"]]
    scales: Look = {"x_log": False, "y_log": False, "one_scale": False}
    marks = {"rank 1 is changed": change}
    return curves(panels | {"loss, all runs": unnamed}, x_label="step", **scales, marks=marks)


def last_calls(ranks: Sequence[Rank], rows: int = 4) -> Figure:
    """A row for each of the last calls, a column for each rank of a group.

    A filled cell is done, a dashed one is waited in, an empty place was never come to. A thick
    frame is around the first row in which the ranks differ.
    """
    of_ranks = [{call.number: call for call in rank.calls} for rank in ranks]
    numbers = sorted({number for calls in of_ranks for number in calls})[-rows:]
    shown = [
        [_call(x, own[number]) for x, own in enumerate(of_ranks) if number in own]
        for number in numbers
    ]
    figure, axes = style.single(size=(0.95 * len(ranks) + 0.5, 0.42 * len(numbers) + 0.4))
    heads = [f"rank {each.rank}" for each in ranks]
    cells(axes, shown, [f"#{number}" for number in numbers], heads, tall=0.84, on_top=True)
    for row, number in enumerate(numbers):
        if len({calls[number].full if number in calls else None for calls in of_ranks}) > 1:
            box(axes, 0, row, len(ranks), 1, edge=WRONG, linewidth=2.2)
            break
    return figure


def _call(column: int, call: RecordedCall) -> Cell:
    waits = call.state != "left"
    what, color = ("waits", COLORS[4]) if waits else ("done", COLORS[5])
    shape = call.tensor.partition(" ")[2]
    text = f"{call.name.removeprefix('minidist.')}\n" + f"{shape} {what}".strip()
    return Cell(text, (color, 0.35), 0.92, column + 0.04, dashed=waits)
