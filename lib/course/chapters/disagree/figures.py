"""Pictures of ranks that disagree: their last calls, and how far they drift apart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.boxes import Look, box, rank_names, single, stacked, table_rows
from minidist.diagnose.verdict import Rank, RecordedCall
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PART, PHASE

STEP, TALK = 1.0, 0.34  # durations of a step's computing and of its all-reduce
WRONG = COLORS[1]
KINDS = {  # what rank 1 does, and what ranks 0 and 2 do; "?": an all-reduce that never ends
    "Loud: somebody gets an error": ("1|Σ|2|Σ|✕ dies", "1|Σ|2|Σ|3|Σ?|error"),
    "Hang: nobody gets an error": ("1|Σ|2|Σ|elsewhere", "1|Σ|2|Σ|3|Σ waits …?"),
    "Silent drift: everybody goes on": ("1|Σ|2|Σ|3'|Σ|4'|Σ|5'|Σ", "1|Σ|2|Σ|3|Σ|4|Σ|5|Σ"),
}


def disagreements() -> Figure:
    """A timeline for each kind, of five steps on three ranks. A sketch, no timing."""
    figure, panels = stacked(KINDS, (3.4, 5.34), fontsize=9, sharex=True)
    for axes, (second, others) in panels:
        for rank, pieces in enumerate((others, second, others)):
            left = 0.0
            for piece in pieces.split("|"):
                left += _piece(axes, left, rank, piece)
        table_rows(axes, rank_names(3), 5 * (STEP + TALK) + 0.05)
        axes.tick_params(labelsize=8)
    axes.set_xlabel("time", fontsize=9, loc="right")
    return figure


def _piece(axes: Axes, left: float, rank: int, piece: str) -> float:
    """Draw a step, an all-reduce, or a word on what became of the rank; return how long it took."""
    if piece[0] not in "12345Σ":
        axes.text(left + 0.15, rank + 0.52, piece, va="center", fontsize=8)
        return 0.0
    wide = 2 * (STEP + TALK) + TALK if "waits" in piece else TALK if "Σ" in piece else STEP
    color = PHASE["all-gather"] if "Σ" in piece else WRONG if "'" in piece else PHASE["forward"]
    dashed = piece.endswith("?")
    face = None if dashed else (color, 0.45)
    box(axes, left, rank + 0.12, wide, 0.76, piece.rstrip("?"), face=face, dashed=dashed)
    return wide


Batches = Sequence[Sequence[int]]  # lengths of each rank's samples


def batch_memory(panels: Mapping[str, Batches], room: int) -> Figure:
    """A bar for each rank: tokens, then padding up to the longest; a line at `room` for tokens."""
    size = 3.4, len(panels) * (0.24 * max(map(len, panels.values())) + 0.4) + 0.3
    figure, drawn = stacked(panels, size, fontsize=9, sharex=True)
    widest = 0.0
    for axes, batches in drawn:
        for rank, lengths in enumerate(batches):
            tokens, padded = sum(lengths) / 1e3, max(lengths) * len(lengths) / 1e3
            widest = max(widest, padded)
            box(axes, 0, rank + 0.12, tokens, 0.76, face=(PART["activations"], 0.45))
            box(axes, tokens, rank + 0.12, padded - tokens, 0.76, dashed=True)
            if padded * 1e3 > room:
                place = padded + 0.2, rank + 0.52
                axes.text(*place, "out of memory", fontsize=8, va="center", color=WRONG)
        axes.axvline(room / 1e3, color=WRONG, linestyle="--", linewidth=1.5)
        style.chart(axes, labelsize=8, bare="y")
        style.name_rows(axes, rank_names(len(batches)))
    axes.set_xlim(0, 1.4 * max(widest, room / 1e3))  # room for the words
    axes.set_xlabel("thousand tokens, padding included", fontsize=9)
    return figure


class Run(NamedTuple):
    """The mean loss of each step, and how far apart the ranks' weights are after it."""

    loss: Sequence[float]
    apart: Sequence[float]


def drift(runs: Mapping[str, Run], change: int) -> Figure:
    """Loss and drift over the steps, a line for each run; `change`: when one rank was changed."""
    titles = {"loss, all runs": "loss", "largest difference of a weight": "apart"}
    figure, panels = stacked(titles, (3.4, 3.9), fontsize=9, sharex=True)
    for axes, quantity in panels:
        for number, run in enumerate(runs.values()):
            look: Look = {"color": COLORS[number], "ls": ("-", "--", ":")[number], "lw": 1.8}
            axes.plot(getattr(run, quantity), **look)
        axes.axvline(change, color=GREY, linewidth=1, linestyle=":")
        style.chart(axes, labelsize=8, grid=0.3)
    for number, (name, run) in enumerate(runs.items()):
        beside: Look = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(1.02, run.apart[-1], name, color=COLORS[number], fontsize=8, **beside)
    axes.set_xlim(-0.5, len(run.apart) - 1)
    axes.set_xlabel("step", fontsize=9)
    return figure


def last_calls(ranks: Sequence[Rank], rows: int = 4) -> Figure:
    """A row for each of the last calls, a column for each rank of a group.

    A filled cell is done, a dashed one is waited in, an empty place was never come to. A thick
    frame is around the first row in which the ranks differ.
    """
    of_ranks = [{call.number: call for call in rank.calls} for rank in ranks]
    numbers = sorted({number for calls in of_ranks for number in calls})[-rows:]
    figure, axes = single(size=(0.95 * len(ranks) + 0.5, 0.42 * len(numbers) + 0.4))
    differ = []
    for row, number in enumerate(numbers):
        for column, calls in enumerate(of_ranks):
            if number in calls:
                _cell(axes, column, row, calls[number])
        if len({calls[number].full if number in calls else None for calls in of_ranks}) > 1:
            differ.append(row)
    if differ:
        box(axes, 0, differ[0], len(ranks), 1, edge=WRONG, linewidth=2.2)
    axes.set_xticks([n + 0.5 for n in range(len(ranks))], [f"rank {each.rank}" for each in ranks])
    axes.xaxis.tick_top()
    axes.set_xlim(-0.03, len(ranks) + 0.03)
    style.name_rows(axes, (f"#{number}" for number in numbers))
    style.table(axes)
    return figure


def _cell(axes: Axes, column: int, row: int, call: RecordedCall) -> None:
    waits = call.state != "left"
    what, color = ("waits", COLORS[4]) if waits else ("done", COLORS[5])
    box(axes, column + 0.04, row + 0.08, 0.92, 0.84, face=(color, 0.35), dashed=waits)
    style.write(axes, column + 0.5, row + 0.36, call.name.removeprefix("minidist."))
    shape = call.tensor.partition(" ")[2]
    style.write(axes, column + 0.5, row + 0.68, f"{shape} {what}".strip())
