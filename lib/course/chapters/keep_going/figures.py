"""Pictures of rounds: replicas that drift, what bytes buy, and workers that die and come back."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from course.drawing.sketches import Look, loss_above
from minidist.plots import style
from minidist.plots.cells import Cell, cells, numbered
from minidist.plots.curves import Curve
from minidist.plots.style import COLORS, DASHES, GREY, MARKERS, RANK


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


def loss_over_bytes(curves: Iterable[Curve]) -> Figure:
    """Loss over MB sent: a color for each length of a round, a dash for each outer momentum.

    A curve's label is "H = 10" or "H = 10, μ 0.5"; the first of each color bears its name.
    """
    figure, axes = style.single(size=(3.5, 2.9))
    hues: dict[str, str] = {}
    momenta: dict[str, Look] = {}
    for curve in curves:
        name, _, momentum = curve.label.partition(", ")
        if name not in hues:
            hues[name] = COLORS[len(hues)]
            end: Look = {"textcoords": "offset points", "va": "center", "ha": "center"}
            end |= {"color": hues[name], "fontsize": style.LABEL}
            axes.annotate(name, (curve.x[-1], curve.y[-1]), (0, -9), **end)
        dash, marker = ("-", *DASHES)[len(momenta)], MARKERS[len(momenta)]
        look: Look = {"lw": 1.4, "ls": dash, "marker": marker, "ms": 4}
        look = momenta.setdefault(momentum or "plain average", look)
        axes.plot(curve.x, curve.y, color=hues[name], **look)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.12)
    style.chart(axes, title="loss", x_label="MB sent per rank", grid=0.3)
    if len(momenta) > 1:
        lines = [Line2D([], [], color=GREY, label=name, **look) for name, look in momenta.items()]
        style.legend_below(figure, 3, lines)
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
