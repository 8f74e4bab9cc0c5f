"""Parts of sketches: a panel without axes, ranks, arrows and texts, and timelines of ranks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import cos, pi, sin
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from minidist.plots import style
from minidist.plots.cells import Cell
from minidist.plots.style import COLORS, GREY, PHASE, RANK
from minidist.schedule.replay import Event, Replay

Look = dict[str, Any]
Point = tuple[float, float]


def sketch(size: Point, x: Point, y: Point, *, margin: float | None = None) -> tuple[Figure, Axes]:
    """One panel without axes that shows these spans; `margin`: its share of each side."""
    figure, axes = style.single(size=size, **({} if margin is None else {"layout": "none"}))
    if margin is not None:
        figure.subplots_adjust(margin, margin, 1 - margin, 1 - margin)
    axes.set(xlim=x, ylim=y)
    axes.set_axis_off()
    return figure, axes


def loss_above(
    x: Sequence[int], undisturbed: Sequence[float], rows: int, said: str
) -> tuple[Figure, Axes, Axes]:
    """A panel with the loss of an undisturbed run as a wide line, and one for some rows below."""
    ratios = 2.3, 0.3 + 0.31 * rows
    figure, grid = style.subplots(2, 1, size=(3.6, 3.4), sharex=True, height_ratios=ratios)
    above, below = grid[:, 0]
    above.plot(x, undisturbed, color=GREY, lw=6, alpha=0.35)
    note(above, 1, 0.9, f"wide line: {said}", "right", transform=above.transAxes)
    style.chart(above, y_label="loss")
    return figure, above, below


def rank_names(ranks: int) -> list[str]:
    """Labels for rows of ranks."""
    return [f"rank {rank}" for rank in range(ranks)]


STEP = (PHASE["forward"], 0.45)
ALL_REDUCE = (PHASE["all-gather"], 0.45)


def timeline(pieces: str, talk: float = 0.34) -> list[Cell]:
    """A rank's work over time, of pieces as in "1 Σ 2' zeros? Σ? has_ended".

    They are steps and all-reduces, which last 1 and `talk`. A step with "'" is wrong; a piece with
    "?" is empty, as it never ends or computes nothing. Other words say what became of the rank.
    """
    found = list[Cell]()
    for piece in pieces.split():
        text, empty = piece.rstrip("?").replace("_", " "), piece.endswith("?")
        wrong = (COLORS[1], 0.45) if "'" in text else STEP
        if text[0] == "Σ":
            wide = 2 + 3 * talk if "waits" in text else talk
            found.append(Cell(text, None if empty else ALL_REDUCE, wide, dashed=empty))
        elif empty or text[0].isdigit():
            found.append(Cell(text, None if empty else wrong, dashed=empty))
        else:
            found.append(Cell(text, wide=0))
    return found


def arrow(
    axes: Axes, start: Point, end: Point, color: str, linewidth: float, **options: Any
) -> None:
    """An arrow with a filled head; `options` are those of `FancyArrowPatch`."""
    look: Look = {"arrowstyle": "-|>", "color": color, "linewidth": linewidth} | options
    axes.add_patch(FancyArrowPatch(start, end, **look))


def note(axes: Axes, x: float, y: float, text: str, ha: str = "left", **options: Any) -> None:
    """A text beside a point, at its height; `options` are those of `Text`."""
    look: Look = {"fontsize": style.TITLE, "va": "center"} | options
    axes.text(x, y, text, ha=ha, **look)


def clockwise(place: float, places: int, wide: float = 1.0, high: float = 1.0) -> Point:
    """A place on an ellipse of these radii: place 0 on top, the others clockwise."""
    angle = 2 * pi * place / places
    return wide * sin(angle), high * cos(angle)


def names_left(axes: Axes, x: float, names: Mapping[float, str]) -> None:
    """Bold names of rows, which end at `x`; each at its height."""
    for y, name in names.items():
        note(axes, x, y, name, "right", fontweight="bold")


def dot(axes: Axes, x: float, y: float, rank: int) -> None:
    """A rank: its number on its colour."""
    color = RANK[rank % len(RANK)]
    axes.plot(x, y, "o", markersize=13, color=color, markeredgecolor=GREY, zorder=4)
    look: Look = {"ha": "center", "va": "center_baseline", "fontsize": 8, "zorder": 5}
    axes.text(x, y, str(rank), color=ink(color), **look)


def ink(color: str) -> str:
    """Black or white, whichever is easier to read on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 130 else "white"


def shares(replay: Replay, events: Sequence[Event]) -> dict[tuple[int, int], float]:
    """Share of the tensor that these events send, by (from, to)."""
    pairs = Counter((event.src, event.dst) for event in events)
    return {pair: count / replay.chunks for pair, count in pairs.items()}
