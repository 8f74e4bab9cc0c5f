"""The decision guide: from the simplest strategy down to the first that fits and is fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY

GOOD, BAD = COLORS[2], COLORS[1]


class Rung(NamedTuple):
    """A strategy and what is asked about it: what it needs, and how fast it is."""

    name: str
    needs: str
    fits: bool
    rate: str = ""  #: only asked if it fits
    fast: bool = False


def ladder(rungs: Sequence[Rung], beyond: str) -> Figure:
    """Two questions for each strategy, from the top down to the first with two times yes.

    What stands below that one is never asked, and drawn without answers.

    Args:
        rungs: the simplest strategy first.
        beyond: what is left if none will do.
    """
    figure, grid = style.subplots(size=(3.4, 0.62 * (len(rungs) + 1) + 0.3))
    axes: Axes = grid[0, 0]
    taken = next((i for i, rung in enumerate(rungs) if rung.fits and rung.fast), len(rungs))
    for row, rung in enumerate(rungs):
        asked = row <= taken
        _box(axes, 0, row, rung.name, GOOD if row == taken else GREY, thick=row == taken)
        _box(axes, 1, row, rung.needs if asked else "not asked", _color(asked, rung.fits))
        second = asked and rung.fits
        if second or not asked:
            _box(axes, 2, row, rung.rate if second else "not asked", _color(second, rung.fast))
        if asked and row < taken:
            axes.annotate("", (0.42, row + 1), (0.42, row + 0.72),
                          arrowprops={"arrowstyle": "->", "color": GREY})  # fmt: skip
    _box(axes, 0, len(rungs), beyond, GOOD if taken == len(rungs) else GREY, wide=3)
    for column, head in ((1, "does it fit?"), (2, "is it fast?")):
        axes.text(column + 0.42, -0.12, head, fontsize=8.5, ha="center", va="bottom")
    axes.set(xlim=(-0.03, 2.9), ylim=(len(rungs) + 0.8, -0.45), xticks=[], yticks=[])
    style.table(axes)
    return figure


def _color(asked: bool, yes: bool) -> str:
    return (GOOD if yes else BAD) if asked else GREY


def _box(
    axes: Axes, column: int, row: int, text: str, color: str, *, thick: bool = False, wide: int = 1
) -> None:
    style.write(axes, column + 0.42 + (wide - 1) / 2, row + 0.36, text)
    look: dict[str, Any] = {"width": wide - 0.16, "height": 0.72, "facecolor": (color, 0.16)}
    style.outline(axes, column, row, color, linewidth=2.2 if thick else 1.0, **look)
