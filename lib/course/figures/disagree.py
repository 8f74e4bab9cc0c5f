"""Pictures of ranks that disagree: their last calls, and how far they drift apart."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.diagnose.verdict import Call, Rank
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PART, PHASE

STEP, TALK = 1.0, 0.34  # durations of a step's computing and of its all-reduce
WRONG = COLORS[1]
TALKS = PHASE["all-gather"]


class Kind(NamedTuple):
    """What rank 1 does in its third step, and what is seen of it."""

    title: str
    stop: str  # written where rank 1 leaves the others; "" if it goes on
    others: str  # written where the others stand then


KINDS = (
    Kind("Loud: somebody gets an error", "✕ dies", "error"),
    Kind("Silent wait: nobody gets anything", "elsewhere", "waits …"),
    Kind("Silent drift: everybody goes on", "", ""),
)


def disagreements(ranks: int = 3, steps: int = 5) -> Figure:
    """One timeline a kind, all of the same ranks and steps. A sketch, no timing."""
    figure, grid = style.subplots(3, 1, size=(3.4, 0.42 * 3 * (ranks + 1) + 0.3), sharex=True)
    for axes, kind in zip(grid[:, 0], KINDS, strict=True):
        _panel(axes, kind, ranks, steps)
    grid[-1, 0].set_xlabel("time", fontsize=9, loc="right")
    return figure


def _panel(axes: Axes, kind: Kind, ranks: int, steps: int) -> None:
    last = 2 if kind.stop else steps
    for step in range(last):
        left = step * (STEP + TALK)
        for rank in range(ranks):
            drifted = rank == 1 and step >= 2
            text = f"{step + 1}'" if drifted else f"{step + 1}"
            _box(axes, left, rank, STEP, text, WRONG if drifted else PHASE["forward"])
            _box(axes, left + STEP, rank, TALK, "Σ", TALKS)
    if kind.stop:
        left = last * (STEP + TALK)
        for rank in range(ranks):
            if rank == 1:
                _say(axes, left + 0.15, rank, kind.stop)
                continue
            _box(axes, left, rank, STEP, f"{last + 1}", PHASE["forward"])
            wide = TALK if kind.others == "error" else (steps - last - 1) * (STEP + TALK) + TALK
            _box(axes, left + STEP, rank, wide, "Σ", None)
            if kind.others == "error":
                _say(axes, left + STEP + TALK + 0.15, rank, kind.others)
            else:
                axes.texts[-1].set_text(f"Σ {kind.others}")
    axes.set_title(kind.title, fontsize=9, loc="left")
    axes.set_xticks([])
    axes.set_xlim(-0.05, steps * (STEP + TALK) + 0.05)
    style.name_rows(axes, (f"rank {rank}" for rank in range(ranks)))
    style.table(axes, labelsize=8)


def _say(axes: Axes, x: float, rank: int, text: str) -> None:
    axes.text(x, rank + 0.52, text, ha="left", va="center", fontsize=8)


def _box(axes: Axes, left: float, rank: int, wide: float, text: str, color: str | None) -> None:
    look: tuple[str, float] | None = (color, 0.45) if color else None
    style.outline(
        axes, left, rank + 0.12, GREY, width=wide, height=0.76, linewidth=0.8, facecolor=look
    )
    if color is None:
        axes.patches[-1].set(linestyle="--")
    style.write(axes, left + wide / 2, rank + 0.52, text)


Batches = Sequence[Sequence[int]]  # of each rank, the lengths of its samples


def batch_memory(panels: Mapping[str, Batches], room: int) -> Figure:
    """A bar for each rank: tokens, then padding up to the longest sample; a line where memory ends.

    `panels`: title → the batch of each rank; `room`: tokens for which there is memory.
    """
    ranks = max(map(len, panels.values()))
    height = len(panels) * (0.24 * ranks + 0.4) + 0.3
    figure, grid = style.subplots(len(panels), 1, size=(3.4, height), sharex=True)
    for axes, (title, batches) in zip(grid[:, 0], panels.items(), strict=True):
        _batches(axes, batches, room)
        axes.set_title(title, fontsize=9, loc="left")
    widest = max(max(own) * len(own) for batches in panels.values() for own in batches)
    grid[-1, 0].set_xlim(0, 1.4 * max(widest, room) / 1e3)  # room for the words
    grid[-1, 0].set_xlabel("thousand tokens, padding included", fontsize=9)
    return figure


def _batches(axes: Axes, batches: Batches, room: int) -> None:
    for rank, lengths in enumerate(batches):
        tokens, padded = sum(lengths) / 1e3, max(lengths) * len(lengths) / 1e3
        bar: dict[str, Any] = {"height": 0.76, "linewidth": 0.8}
        color = PART["activations"], 0.45
        style.outline(axes, 0, rank + 0.12, GREY, width=tokens, facecolor=color, **bar)
        style.outline(axes, tokens, rank + 0.12, GREY, width=padded - tokens, **bar)
        axes.patches[-1].set(linestyle="--")
        if padded * 1e3 > room:
            text: dict[str, Any] = {"fontsize": 8, "va": "center", "color": COLORS[1]}
            axes.text(padded + 0.2, rank + 0.52, "out of memory", **text)
    axes.axvline(room / 1e3, color=COLORS[1], linestyle="--", linewidth=1.5)
    style.chart(axes, labelsize=8)
    style.name_rows(axes, (f"rank {rank}" for rank in range(len(batches))))
    axes.tick_params(axis="y", length=0)


class Run(NamedTuple):
    """Of each step, the mean loss and how far apart the ranks' weights are after it."""

    loss: Sequence[float]
    apart: Sequence[float]


LOOKS = ("-", "--", ":")


def drift(runs: Mapping[str, Run], change: int) -> Figure:
    """Two panels over the same steps, a line for each run.

    `runs`: name → what was measured; `change`: the step at which something was changed on one rank.
    """
    figure, grid = style.subplots(2, 1, size=(3.4, 3.9), sharex=True)
    above, below = grid[:, 0]
    for number, (name, run) in enumerate(runs.items()):
        look = {"color": COLORS[number], "linestyle": LOOKS[number], "linewidth": 1.8}
        above.plot(run.loss, **look)
        below.plot(run.apart, **look)
        end = len(run.apart) - 1, run.apart[-1]
        below.annotate(name, end, (4, 0), textcoords="offset points", fontsize=8, va="center")
        below.set_xlim(-0.5, 1.27 * end[0])  # room for the names
    for axes, title in ((above, "loss, all runs"), (below, "largest difference of a weight")):
        axes.set_title(title, fontsize=9, loc="left")
        axes.axvline(change, color=GREY, linewidth=1, linestyle=":")
        axes.grid(alpha=0.3)
        style.chart(axes, labelsize=8)
    below.set_xlabel("step", fontsize=9)
    return figure


WIDE = 1.0
DONE, WAITS = COLORS[5], COLORS[4]


def last_calls(ranks: Sequence[Rank], rows: int = 4) -> Figure:
    """A row for each of the last calls, a column for each rank.

    A filled cell is done, a dashed one is waited in, an empty place was never come to. A thick
    frame is around the first row in which the ranks differ. `ranks`: as
    `minidist.diagnose.verdict.read` has them; of one group; `rows`: how many numbers to show, the
    last ones.
    """
    numbers = sorted({call.number for rank in ranks for call in rank.calls})[-rows:]
    size = 0.95 * len(ranks) + 0.5, 0.42 * len(numbers) + 0.4
    figure, grid = style.subplots(size=size)
    axes: Axes = grid[0, 0]
    for row, number in enumerate(numbers):
        calls = [_of_number(rank, number) for rank in ranks]
        for column, call in enumerate(calls):
            _cell(axes, column, row, call)
    first = next((row for row, n in enumerate(numbers) if _differs(ranks, n)), None)
    if first is not None:
        frame: dict[str, Any] = {"width": len(ranks) * WIDE, "height": 1.0, "linewidth": 2.2}
        style.outline(axes, 0, first, COLORS[1], **frame)
    axes.set_xticks([n + 0.5 for n in range(len(ranks))], [f"rank {each.rank}" for each in ranks])
    axes.xaxis.tick_top()
    axes.set_xlim(-0.03, len(ranks) * WIDE + 0.03)
    style.name_rows(axes, (f"#{number}" for number in numbers))
    style.table(axes)
    return figure


def _of_number(rank: Rank, number: int) -> Call | None:
    return next((call for call in rank.calls if call.number == number), None)


def _differs(ranks: Sequence[Rank], number: int) -> bool:
    calls = [_of_number(rank, number) for rank in ranks]
    return len({call.full if call else None for call in calls}) > 1


def _cell(axes: Axes, column: int, row: int, call: Call | None) -> None:
    place = {"width": 0.92 * WIDE, "height": 0.84}
    left, top = column * WIDE + 0.04, row + 0.08
    if call is None:
        return
    waits = call.state != "left"
    color = WAITS if waits else DONE
    style.outline(axes, left, top, GREY, linewidth=0.9, facecolor=(color, 0.35), **place)
    if waits:
        axes.patches[-1].set(linestyle="--")
    name = call.name.removeprefix("minidist.")
    style.write(axes, left + 0.46 * WIDE, row + 0.36, name)
    what = "waits" if waits else "done"
    shape = call.tensor.partition(" ")[2]
    style.write(axes, left + 0.46 * WIDE, row + 0.68, f"{shape} {what}".strip(), 8)
