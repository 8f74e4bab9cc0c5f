"""Pictures for choosing a strategy: what fits, at what rate, and how good a forecast was."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course.drawing.sketches import Look, Point
from minidist.plots import style
from minidist.plots.cells import Cell, cells
from minidist.plots.curves import plain_logs
from minidist.plots.style import COLORS, GREY, MARKERS

GOOD, BAD = COLORS[2], COLORS[1]


class Rung(NamedTuple):
    """A strategy and what is asked about it: what it needs, and how fast it is."""

    name: str
    needs: str
    fits: bool
    rate: str = ""  #: only asked if it fits
    fast: bool = False


def ladder(rungs: Sequence[Rung], beyond: str) -> Figure:
    """Two questions for each strategy, from the top down to the first with two yeses.

    What stands below that one is never considered. `beyond`: what is left if none will do.
    """
    taken = next((i for i, rung in enumerate(rungs) if rung.fits and rung.fast), len(rungs))
    rows = []
    for row, rung in enumerate(rungs):
        if row > taken:
            answers = [("not considered", GREY)] * 2
        else:
            asked = [(rung.needs, rung.fits), (rung.rate, rung.fast)][: 1 + rung.fits]
            answers = [(text, GOOD if yes else BAD) for text, yes in asked]
        name = _answer(rung.name, GOOD, 2.2) if row == taken else _answer(rung.name, GREY)
        rows.append([name, *(_answer(*each, at=at) for at, each in enumerate(answers, 1))])
    left = GOOD if taken == len(rungs) else GREY
    rows.append([_answer(beyond, left, wide=2.84)])
    figure, axes = style.single(size=(3.4, 0.62 * len(rows) + 0.3))
    cells(axes, rows, columns=["", "does it fit?", "is it fast?"], tall=0.72, on_top=True)
    for row in range(min(taken, len(rungs))):
        down = {"arrowstyle": "->", "color": GREY}
        axes.annotate("", (0.42, row + 1.14), (0.42, row + 0.86), arrowprops=down)
    return figure


def _answer(text: str, color: str, linewidth: float = 1.0, **place: float) -> Cell:
    look: Look = {"wide": 0.84, "edge": color, "linewidth": linewidth} | place
    return Cell(text, (color, 0.16), **look)


LINES: dict[str, dict[str, Any]] = {
    "compute": {"color": GREY, "ls": (0, (8, 2)), "lw": 1.3},
    "memory": {"color": COLORS[2], "ls": "-.", "lw": 1.3},
    "network": {"color": COLORS[1], "ls": "--", "lw": 1.3},
    "overlapped": {"color": COLORS[0], "ls": "-", "lw": 2.4},
    "without overlap": {"color": COLORS[3], "ls": ":", "lw": 2.2},
}


def roofline(
    tokens: Sequence[int],
    shares: Mapping[str, Sequence[float]],
    names: Mapping[str, tuple[float, float]],
) -> Figure:
    """Shares of the peak over a rank's tokens in a step; one of `LINES` each, named at `names`."""
    figure, axes = style.single(size=(3.3, 3.0))
    for name, line in shares.items():
        axes.plot(tokens, line, **LINES[name])
        axes.text(*names[name], name, fontsize=style.TITLE, color=LINES[name]["color"])
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", ylim=(min(min(line) for line in shares.values()) * 0.8, 1))
    axes.set_xticks(tokens[::3], [f"{count:,}" for count in tokens[::3]])
    axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.4, 1], ["2%", "5%", "10%", "20%", "40%", "100%"])
    axes.minorticks_off()
    style.chart(axes, title="share of the GPU's peak", x_label="tokens per GPU and step", grid=0.3)
    return figure


def predicted(
    points: Mapping[str, Sequence[Point]], *, what: str, seen: str = "measured"
) -> Figure:
    """A mark for each pair (predicted, seen), by kind; dotted lines are off by a quarter.

    `what`: is predicted, with its unit; `seen`: how the second of a pair is known.
    """
    figure, axes = style.single(size=(3.4, 3.4))
    every = [value for pairs in points.values() for pair in pairs for value in pair]
    ends = [min(every) / 1.4, max(every) * 1.4]
    axes.plot(ends, ends, color=GREY, lw=1.2)
    for factor in (1.25, 0.75):
        axes.plot(ends, [factor * end for end in ends], color=GREY, lw=0.9, ls=":")
    size = 4 if len(every) > 100 else 5
    for number, (kind, pairs) in enumerate(points.items()):
        look: Look = {"color": COLORS[number], "markersize": size, "alpha": 0.8, "ls": "none"}
        axes.plot(*zip(*pairs, strict=True), MARKERS[number], label=kind, **look)
    steps = (1,) if ends[1] > 100 * ends[0] else (1, 2, 5)
    plain_logs(axes, [step * 10.0**power for power in range(-6, 13) for step in steps])
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    style.chart(axes, x_label=f"predicted {what}", y_label=f"{seen} {what}")
    style.legend_below(figure, 3)
    return figure


def budget(limit: Point, forecast: Mapping[str, Point], measured: Sequence[Point]) -> Figure:
    """Each strategy's forecast, a ring, joined to what was measured, a diamond; a box, the budget.

    Points are (seconds of the run, MB on a rank).
    """
    figure, axes = style.single(size=(3.4, 3.0))
    axes.add_patch(Rectangle((0, 0), *limit, color=COLORS[2], alpha=0.15, lw=0))
    axes.text(0.03, 0.03, "the budget", fontsize=style.TITLE, color=GREY, transform=axes.transAxes)
    rings, marks = zip(*forecast.values(), strict=True), zip(*measured, strict=True)
    axes.plot(*rings, "o", label="forecast", markersize=7, mfc="none", mec=COLORS[0])
    axes.plot(*marks, "D", label="measured", markersize=4, color=COLORS[1])
    for ring, mark in zip(forecast.values(), measured, strict=False):
        axes.plot(*zip(ring, mark, strict=True), color=GREY, lw=1, zorder=1)
    across, up = zip(*forecast.values(), *measured, limit, strict=True)
    axes.set(xlim=(0.7 * min(across), 1.15 * max(across)), ylim=(0.7 * min(up), 1.15 * max(up)))
    style.chart(axes, x_label="the run, s on the cluster's clock", y_label="held by a rank, MB")
    style.legend_below(figure, 2)
    _name_rings(figure, axes, forecast, measured)
    return figure


def _name_rings(
    figure: Figure, axes: Axes, forecast: Mapping[str, Point], measured: Sequence[Point]
) -> None:
    """Write each strategy's name to the right of its ring, or, if others lie there, to the left."""
    figure.draw_without_rendering()  # only now is it known how far apart rings are
    marks = dict(zip(forecast, measured, strict=False))
    places = axes.transData.transform([*forecast.values(), *marks.values()]) * 72 / figure.dpi
    owners = [*forecast, *marks]
    last: dict[str, float] = {}  # height of the last name on each side
    for name, (seconds, held) in sorted(forecast.items(), key=lambda item: item[1][1]):
        across, ring = places[owners.index(name)]
        others = (place for place, owner in zip(places, owners, strict=True) if owner != name)
        taken = any(2 < x - across < 50 and abs(y - ring) < style.LABEL for x, y in others)
        side, start = (-7, "right") if taken else (7, "left")
        height = max(ring, last.get(start, 0) + 1.3 * style.LABEL)
        last[start] = height
        where: dict[str, Any] = {"textcoords": "offset points", "ha": start, "va": "center"}
        axes.annotate(name, (seconds, held), (side, height - ring), fontsize=style.LABEL, **where)
