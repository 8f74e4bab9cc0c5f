"""Pictures of ranks that disagree: their last calls, and how far they drift apart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.boxes import Look, box, rank_names, single, stacked, table_rows
from minidist.diagnose.verdict import Rank, RecordedCall
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PART, PHASE

STEP, TALK = 1.0, 0.34  # durations of a step's computing and of its all-reduce
WRONG = COLORS[1]


class Kind(NamedTuple):
    """What rank 1 does in its third step, and what is seen of it."""

    title: str
    stop: str  # written where rank 1 leaves the others; "" if it goes on
    others: str  # written where the others stand then


KINDS = (
    Kind("Loud: somebody gets an error", "✕ dies", "error"),
    Kind("Hang: nobody gets an error", "elsewhere", "waits …"),
    Kind("Silent drift: everybody goes on", "", ""),
)


def disagreements(ranks: int = 3, steps: int = 5) -> Figure:
    """A timeline for each kind, all of the same ranks and steps. A sketch, no timing."""
    kinds = {kind.title: kind for kind in KINDS}
    size = 3.4, 0.42 * 3 * (ranks + 1) + 0.3
    figure, panels = stacked(kinds, size, fontsize=9, sharex=True)
    for axes, kind in panels:
        _panel(axes, kind, ranks, steps)
    axes.set_xlabel("time", fontsize=9, loc="right")
    return figure


def _panel(axes: Axes, kind: Kind, ranks: int, steps: int) -> None:
    last = 2 if kind.stop else steps
    for step in range(last):
        left = step * (STEP + TALK)
        for rank in range(ranks):
            drifted = rank == 1 and step >= 2
            text = f"{step + 1}'" if drifted else f"{step + 1}"
            _box(axes, left, rank, STEP, text, WRONG if drifted else PHASE["forward"])
            _box(axes, left + STEP, rank, TALK, "Σ", PHASE["all-gather"])
    if kind.stop:
        left = last * (STEP + TALK)
        for rank in range(ranks):
            if rank == 1:
                _say(axes, left + 0.15, rank, kind.stop)
                continue
            _box(axes, left, rank, STEP, f"{last + 1}", PHASE["forward"])
            if kind.others == "error":
                _box(axes, left + STEP, rank, TALK, "Σ", None)
                _say(axes, left + STEP + TALK + 0.15, rank, kind.others)
            else:
                wide = (steps - last - 1) * (STEP + TALK) + TALK
                _box(axes, left + STEP, rank, wide, f"Σ {kind.others}", None)
    table_rows(axes, rank_names(ranks), steps * (STEP + TALK) + 0.05)
    axes.tick_params(labelsize=8)


def _say(axes: Axes, x: float, rank: int, text: str) -> None:
    axes.text(x, rank + 0.52, text, ha="left", va="center", fontsize=8)


def _box(axes: Axes, left: float, rank: int, wide: float, text: str, color: str | None) -> None:
    face = (color, 0.45) if color else None
    box(axes, left, rank + 0.12, wide, 0.76, text, face=face, dashed=face is None)


Batches = Sequence[Sequence[int]]  # of each rank, the lengths of its samples


def batch_memory(panels: Mapping[str, Batches], room: int) -> Figure:
    """A bar for each rank: tokens, then padding up to the longest; a line at `room` for tokens."""
    size = 3.4, len(panels) * (0.24 * max(map(len, panels.values())) + 0.4) + 0.3
    figure, drawn = stacked(panels, size, fontsize=9, sharex=True)
    for axes, batches in drawn:
        for rank, lengths in enumerate(batches):
            tokens, padded = sum(lengths) / 1e3, max(lengths) * len(lengths) / 1e3
            box(axes, 0, rank + 0.12, tokens, 0.76, face=(PART["activations"], 0.45))
            box(axes, tokens, rank + 0.12, padded - tokens, 0.76, dashed=True)
            if padded * 1e3 > room:
                place = padded + 0.2, rank + 0.52
                axes.text(*place, "out of memory", fontsize=8, va="center", color=WRONG)
        axes.axvline(room / 1e3, color=WRONG, linestyle="--", linewidth=1.5)
        style.chart(axes, labelsize=8)
        style.name_rows(axes, rank_names(len(batches)))
        axes.tick_params(axis="y", length=0)
    widest = max(max(own) * len(own) for batches in panels.values() for own in batches)
    axes.set_xlim(0, 1.4 * max(widest, room) / 1e3)  # room for the words
    axes.set_xlabel("thousand tokens, padding included", fontsize=9)
    return figure


class Run(NamedTuple):
    """Of each step, the mean loss and how far apart the ranks' weights are after it."""

    loss: Sequence[float]
    apart: Sequence[float]


def drift(runs: Mapping[str, Run], change: int) -> Figure:
    """Loss and drift over the steps, a line for each run; `change`: when one rank was changed."""
    titles = dict.fromkeys(("loss, all runs", "largest difference of a weight"))
    figure, panels = stacked(titles, (3.4, 3.9), fontsize=9, sharex=True)
    (above, _), (below, _) = panels
    for number, (name, run) in enumerate(runs.items()):
        look: Look = {"color": COLORS[number], "ls": ("-", "--", ":")[number], "lw": 1.8}
        above.plot(run.loss, **look)
        below.plot(run.apart, **look)
        beside: Look = {"transform": below.get_yaxis_transform(), "va": "center"}
        below.text(1.02, run.apart[-1], name, color=COLORS[number], fontsize=8, **beside)
        below.set_xlim(-0.5, len(run.apart) - 1)
    for axes in (above, below):
        axes.axvline(change, color=GREY, linewidth=1, linestyle=":")
        axes.grid(alpha=0.3)
        style.chart(axes, labelsize=8)
    below.set_xlabel("step", fontsize=9)
    return figure


def last_calls(ranks: Sequence[Rank], rows: int = 4) -> Figure:
    """A row for each of the last calls, a column for each rank of a group.

    A filled cell is done, a dashed one is waited in, an empty place was never come to. A thick
    frame is around the first row in which the ranks differ.
    """
    numbers = sorted({call.number for rank in ranks for call in rank.calls})[-rows:]
    figure, axes = single(size=(0.95 * len(ranks) + 0.5, 0.42 * len(numbers) + 0.4))
    framed = False
    for row, number in enumerate(numbers):
        calls = [next((c for c in rank.calls if c.number == number), None) for rank in ranks]
        for column, call in enumerate(calls):
            if call:
                _cell(axes, column, row, call)
        if len({call.full if call else None for call in calls}) > 1 and not framed:
            box(axes, 0, row, len(ranks), 1, edge=WRONG, linewidth=2.2)
            framed = True
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
