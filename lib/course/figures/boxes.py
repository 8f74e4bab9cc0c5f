"""What most figures are made of: one panel, boxes with a text, cells with ranks' parts."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, RANK


def single(*, size: tuple[float, float], **options: Any) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure, grid = style.subplots(size=size, **options)
    return figure, grid[0, 0]


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str = "",
    *,
    edge: str = GREY,
    face: tuple[str, float] | None = None,
    linewidth: float = 0.8,
    dashed: bool = False,
    fontsize: float = style.LABEL,
) -> None:
    """A border, filled with `face` (a colour and its opacity), and a text in the middle."""
    style.outline(axes, x, y, edge, width=width, height=height, linewidth=linewidth, facecolor=face)
    axes.patches[-1].set(linestyle="--" if dashed else "-")
    if text:
        style.write(axes, x + width / 2, y + 0.52 * height, text, fontsize)


def stripes(
    axes: Axes, x: float, y: float, who: Sequence[int], *, width: float = 1, height: float = 1
) -> None:
    """A cell with a stripe for each rank whose part is in it."""
    for number, rank in enumerate(who):
        each = width / len(who)
        style.fill(axes, x + number * each, y, RANK[rank % 8], width=each, height=height)
