"""Pictures of rounds: ranks that step alone and meet, and workers that die and come back."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course.drawing.sketches import ALL_REDUCE, STEP, Look, loss_above, timeline
from minidist.plots import style
from minidist.plots.cells import Cell, cells, lanes, numbered, of_ranks
from minidist.plots.style import COLORS, GREY, RANK


def when_ranks_talk(every: int = 4, rounds: int = 2, talk: float = 1.2) -> Figure:
    """Two ranks, by DDP and in rounds: who computes when, and when they wait for the network."""
    steps = [f"{step}" for step in range(1, every * rounds + 1)]
    meeting = [step + " Σ" * (int(step) % every == 0) for step in steps]
    ways = {"DDP": " Σ ".join([*steps, ""]), f"rounds of {every} steps": " ".join(meeting)}
    panels = {title: of_ranks([timeline(pieces, talk)] * 2) for title, pieces in ways.items()}
    figure = lanes(panels, (3.6, 2.3))
    looks = {"a step": STEP, "all-reduce on a slow link": ALL_REDUCE}
    faces = {name: {"facecolor": face, "edgecolor": GREY} for name, face in looks.items()}
    style.legend_below(figure, 2, faces)
    return figure


def outer_path(
    replicas: Sequence[Sequence[float]], starts: Sequence[float], every: int, best: float
) -> Figure:
    """One weight over steps: each rank's, and where the rounds begin; dashed, the optimum.

    `replicas`: of each rank, its weight after each step; `starts`: of each round.
    """
    figure, axes = style.single(size=(3.5, 2.4))
    firsts = range(0, every * len(starts), every)
    for rank, weights in enumerate(replicas):
        for first, start in zip(firsts, starts[:-1], strict=False):
            part = [start, *weights[first : first + every]]
            look: Look = {"color": RANK[rank], "marker": ".", "ms": 4, "lw": 1.2}
            axes.plot(range(first, first + every + 1), part, label=f"rank {rank}", **look)
    axes.plot(firsts, starts, "D", color=GREY, ms=4.5, label="all ranks, after a round")
    axes.axhline(best, color=GREY, ls="--", lw=1)
    style.beside(axes, best, "best")
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
    numbers = range(1, len(rounds) + 1)
    figure, above, below = loss_above(numbers, undisturbed, len(workers), "nobody is killed")
    above.plot(numbers, losses, color=COLORS[0], lw=1.4)
    there = {}
    for worker in workers:
        own = (at for at, members in enumerate(rounds, 1) if worker in members)
        cell = Cell(face=(RANK[worker % len(RANK)], 0.45), linewidth=0)
        there[f"worker {worker}"] = [cell._replace(at=number - 0.5) for number in own]
    cells(below, there, tall=0.8, x_label="round")
    numbered(below)
    looks: dict[str, Look] = {
        "killed": {"marker": "x", "color": COLORS[1], "ms": 7, "label": "killed"},
        "started": {"marker": "|", "color": COLORS[2], "ms": 10, "label": "started again"},
    }
    for (number, worker), what in events.items():
        place = number, workers.index(worker) + 0.5
        below.plot(*place, clip_on=False, ls="", mew=2, **looks[what])
    below.set_xlim(0.4, len(rounds) + 0.6)
    style.legend_below(figure, 2)
    return figure
