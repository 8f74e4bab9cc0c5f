"""Pictures of rounds: ranks that step alone and meet, and workers that die and come back."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from course.drawing.boxes import Look, box, rank_names, single, sketch
from minidist.plots import style
from minidist.plots.style import COLORS, GREY, LABEL, RANK, WORK


def when_ranks_talk(every: int = 4, rounds: int = 2, talk: float = 1.2) -> Figure:
    """Two ranks, by DDP and in rounds: who computes when, and when they wait for the network."""
    right = rounds * (every + talk) * 1.18
    figure, axes = sketch((3.6, 2.3), (-1.05, right), (5.65, -0.75))
    looks = {"a step": (GREY, 0.25), "all-reduce on a slow link": (WORK["communication"], 0.3)}
    for top, steps, title in ((0.0, 1, "DDP"), (2.75, every, f"rounds of {every} steps")):
        axes.text(0, top - 0.12, title, fontsize=8, va="bottom")
        for rank, name in enumerate(rank_names(2)):
            axes.text(-0.12, top + rank + 0.42, name, fontsize=8, va="center", ha="right")
            at, hue, step = 0.0, RANK[rank], 1
            while at + 1 <= right:
                box(axes, at, top + rank, 0.94, 0.84, f"{step}", edge=hue, face=(hue, 0.25))
                at += 1
                if step % steps == 0:
                    color, alpha = looks["all-reduce on a slow link"]
                    width = min(talk, right - at) - 0.06
                    box(axes, at, top + rank, width, 0.84, edge=color, face=(color, alpha))
                    at += talk
                step += 1
    patches = {name: {"facecolor": face, "edgecolor": face[0]} for name, face in looks.items()}
    style.legend_below(figure, 2, patches)
    return figure


def outer_path(
    replicas: Sequence[Sequence[float]], starts: Sequence[float], every: int, best: float
) -> Figure:
    """One weight over steps: each rank's, and where the rounds begin; dashed, the optimum.

    `replicas`: of each rank, its weight after each step; `starts`: of each round.
    """
    figure, axes = single(size=(3.5, 2.4))
    firsts = range(0, every * len(starts), every)
    for rank, weights in enumerate(replicas):
        for first, start in zip(firsts, starts[:-1], strict=False):
            part = [start, *weights[first : first + every]]
            look: Look = {"color": RANK[rank], "marker": ".", "ms": 4, "lw": 1.2}
            axes.plot(range(first, first + every + 1), part, label=f"rank {rank}", **look)
    axes.plot(firsts, starts, "D", color=GREY, ms=4.5, label="all ranks, after a round")
    axes.axhline(best, color=GREY, ls="--", lw=1)
    beside: Look = {"transform": axes.get_yaxis_transform(), "fontsize": LABEL}
    axes.text(1.02, best, "best", va="center", **beside)
    style.chart(axes, title="the weight", x_label="step")
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
    said: Look = {"transform": above.transAxes, "fontsize": LABEL, "ha": "right"}
    above.text(1, 0.9, "wide line: nobody is killed", **said)
    for number, members in enumerate(rounds, 1):
        for worker in members:
            place, color = (number - 0.5, workers.index(worker) + 0.1), RANK[worker % len(RANK)]
            style.fill(below, *place, color, height=0.8, alpha=0.45)
    looks: dict[str, Look] = {
        "killed": {"marker": "x", "color": COLORS[1], "ls": "", "mew": 2},
        "started": {"marker": "|", "color": COLORS[2], "ls": "", "mew": 2},
    }
    for (number, worker), what in events.items():
        place, size = (number, workers.index(worker) + 0.5), 7 if what == "killed" else 10
        below.plot(*place, clip_on=False, ms=size, **looks[what])
    style.name_rows(below, [f"worker {worker}" for worker in workers])
    below.set_xlabel("round", fontsize=8)
    below.set_xlim(0.4, len(rounds) + 0.6)
    for axes in (above, below):
        style.chart(axes)
    names = {"killed": "killed", "started": "started again"}
    handles = [Line2D([], [], label=names[what], **look) for what, look in looks.items()]
    style.legend_below(figure, 2, handles)
    return figure
