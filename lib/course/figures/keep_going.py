"""Pictures of rounds: ranks that step alone and meet, and workers that die and come back."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course.figures.boxes import box, rank_names, sketch
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, LABEL, RANK, WORK


def when_ranks_talk(every: int = 4, rounds: int = 2, talk: float = 1.2) -> Figure:
    """Two ranks, by DDP and in rounds: who computes when, and when they wait for the network."""
    low, right = 5.3, rounds * (every + talk) * 1.18
    figure, axes = sketch((3.6, 2.3), (-1.05, right), (low + 0.35, -0.75))
    for top, steps, title in ((0.0, 1, "DDP"), (2.75, every, f"rounds of {every} steps")):
        axes.text(0, top - 0.12, title, fontsize=8, va="bottom")
        for rank, name in enumerate(rank_names(2)):
            axes.text(-0.12, top + rank + 0.42, name, fontsize=8, va="center", ha="right")
            at, step = 0.0, 0
            while at + 1 <= right:
                step += 1
                hue = RANK[rank]
                box(axes, at, top + rank, 0.94, 0.84, f"{step}", edge=hue, face=(hue, 0.25))
                at += 1
                if step % steps == 0:
                    width = min(talk, right - at) - 0.06
                    color = WORK["communication"]
                    box(axes, at, top + rank, width, 0.84, "", edge=color, face=(color, 0.3))
                    at += talk
    handles = [
        Patch(facecolor=(GREY, 0.25), edgecolor=GREY, label="a step"),
        Patch(facecolor=(COLORS[1], 0.3), edgecolor=COLORS[1], label="all-reduce on a slow link"),
    ]
    style.legend_below(figure, 2, handles)
    return figure


def outer_path(
    replicas: Sequence[Sequence[float]], starts: Sequence[float], every: int, best: float
) -> Figure:
    """One weight over steps: each rank's, and where the rounds begin; dashed, the optimum.

    `replicas`: of each rank, its weight after each step; `starts`: of each round.
    """
    figure, grid = style.subplots(size=(3.5, 2.4))
    axes = grid[0, 0]
    for rank, weights in enumerate(replicas):
        for number, start in enumerate(starts[:-1]):
            part = [start, *weights[number * every : (number + 1) * every]]
            steps = range(number * every, (number + 1) * every + 1)
            label = f"rank {rank}" if not number else None
            axes.plot(steps, part, color=RANK[rank], marker=".", ms=4, lw=1.2, label=label)
    ends = [every * number for number in range(len(starts))]
    axes.plot(ends, starts, "D", color=GREY, ms=4.5, label="all ranks, after a round")
    axes.axhline(best, color=GREY, ls="--", lw=1)
    beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "fontsize": LABEL}
    axes.text(1.02, best, "best", va="center", **beside)
    axes.set_xlabel("step", fontsize=style.TITLE)
    axes.set_title("the weight", fontsize=style.TITLE, loc="left")
    style.chart(axes)
    style.legend_below(figure, 3)
    return figure


def presence(
    rounds: Sequence[Sequence[int]],
    events: Mapping[tuple[int, int], str],
    losses: Sequence[float],
    undisturbed: Sequence[float],
) -> Figure:
    """Below, who was in each round; above, the loss after it, and that of all workers always there.

    `events`: (round, worker) → "killed" or "started", before that round's end.
    """
    workers = sorted({worker for members in rounds for worker in members})
    figure, grid = style.subplots(
        2, 1, size=(3.6, 3.4), sharex=True, height_ratios=(2.2, 0.3 + 0.32 * len(workers))
    )
    above, below = grid[:, 0]
    numbers = range(1, len(rounds) + 1)
    above.plot(numbers, undisturbed, color=GREY, lw=6, alpha=0.35)
    above.plot(numbers, losses, color=COLORS[0], lw=1.4)
    above.set_ylabel("loss", fontsize=8)
    said: dict[str, Any] = {"transform": above.transAxes, "fontsize": LABEL, "ha": "right"}
    above.text(1, 0.9, "wide line: nobody is killed", **said)
    for row, worker in enumerate(workers):
        color = RANK[worker % len(RANK)]
        for number, members in enumerate(rounds, 1):
            if worker in members:
                style.fill(below, number - 0.5, row + 0.1, color, height=0.8, alpha=0.45)
    for (number, worker), what in events.items():
        look: dict[str, Any] = {"color": COLORS[1], "ms": 7, "mew": 2, "ls": ""}
        mark = "x" if what == "killed" else "|"
        look |= {} if what == "killed" else {"color": COLORS[2], "ms": 10}
        below.plot(number, workers.index(worker) + 0.5, mark, clip_on=False, **look)
    style.name_rows(below, [f"worker {worker}" for worker in workers])
    below.set_xlabel("round", fontsize=8)
    below.set_xlim(0.4, len(rounds) + 0.6)
    for axes in (above, below):
        style.chart(axes)
    handles = [
        Line2D([], [], marker="x", color=COLORS[1], ls="", mew=2, label="killed"),
        Line2D([], [], marker="|", color=COLORS[2], ls="", mew=2, label="started again"),
    ]
    style.legend_below(figure, 2, handles)
    return figure
