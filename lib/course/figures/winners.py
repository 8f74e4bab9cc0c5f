"""The picture of a choice: which algorithm is the fastest where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from minidist.plots import style
from minidist.plots.style import COLORS

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def winners(
    best: Mapping[str, Mapping[int, Sequence[str]]],
    sizes: Sequence[float],
    names: Sequence[str],
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Which algorithm is the fastest: tensor size to the right, ranks upward.

    Args:
        best: for each title a panel: number of ranks → the winner's name at each of `sizes`.
        sizes: bytes, ascending.
        names: all names that may win; a name's place here gives its colour.
        marks: name → bytes that get a line from top to bottom.
    """
    figure, grid = style.subplots(len(best), 1, size=(3.7, 2.5 * len(best) + 0.2), sharex=True)
    for axes, (title, rows) in zip(grid[:, 0], best.items(), strict=True):
        _regions(axes, rows, sizes, names)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel("ranks", fontsize=9)
        for name, at in (marks or {}).items():
            axes.axvline(at, color="black", lw=1.2, ls="--")
            axes.text(at, len(rows) - 0.45, name, ha="center", va="bottom", fontsize=8)
    grid[-1, 0].set_xlabel("bytes in the tensor", fontsize=9)
    return figure


def _regions(
    axes: Axes, rows: Mapping[int, Sequence[str]], sizes: Sequence[float], names: Sequence[str]
) -> None:
    index = np.array([[names.index(name) for name in rows[ranks]] for ranks in rows])
    axes.pcolormesh(
        sizes,
        np.arange(len(rows)),
        index,
        cmap=ListedColormap(COLORS[: len(names)]),
        vmin=-0.5,
        vmax=len(names) - 0.5,
        shading="nearest",
        alpha=0.55,
        rasterized=True,  # or seams show between the cells
    )
    for which in np.unique(index):  # its name, in the middle of its largest row
        wide = (index == which).sum(axis=1)
        place = np.flatnonzero(index[int(wide.argmax())] == which)
        if len(place) > len(sizes) / 6:
            x = np.sqrt(sizes[place[0]] * sizes[place[-1]])
            style.write(axes, x, int(wide.argmax()), names[int(which)])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in range(0, 51, 5)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))
    axes.set_yticks(range(len(rows)), [f"{ranks:,}" for ranks in rows])
    style.chart(axes, labelsize=8)


def in_bytes(value: float) -> str:
    """A number of bytes on an axis: 256 B, 64 KiB, 16 MiB."""
    power = min(int(np.log2(max(value, 1)) // 10), len(UNITS) - 1)
    return f"{value / 1024**power:g} {UNITS[power]}"


def byte_ticks(*powers: int) -> dict[float, str]:
    """Powers of two on an axis of bytes: value → what stands there."""
    return {2.0**power: in_bytes(2.0**power) for power in powers}
