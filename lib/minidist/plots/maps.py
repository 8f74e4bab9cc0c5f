"""Pictures of a choice: several algorithms side by side, and which one wins where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from minidist.plots.draw import COLORS, Curve

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def panels(data: Mapping[str, Sequence[Curve]], *, x_label: str, y_label: str) -> Figure:
    """Curves in panels side by side, one for each title, over the same axes; y in seconds."""
    figure, row = plt.subplots(
        1,
        len(data),
        figsize=(2.9 * len(data), 3.9),
        sharex=True,
        sharey=True,
        squeeze=False,
        facecolor="none",
        layout="constrained",
    )
    for axes, (title, lines) in zip(row[0], data.items(), strict=True):
        for line in lines:
            style = "--" if line.predicted else "-"
            axes.plot(line.x, line.y, style, color=COLORS[line.color], label=line.label, lw=1.4)
        axes.set(title=title, xscale="log", yscale="log", xlabel=x_label)
        axes.grid(alpha=0.3)
        _plain(axes)
    row[0][0].set_ylabel(y_label)
    handles, labels = row[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def winners(
    best: Mapping[str, Mapping[int, Sequence[str]]], sizes: Sequence[float], names: Sequence[str]
) -> Figure:
    """Which algorithm is the fastest: tensor size to the right, ranks upward.

    Args:
        best: for each title a panel: number of ranks → the winner's name at each of `sizes`.
        sizes: bytes, ascending.
        names: all names that may win; a name's place here gives its colour.
    """
    figure, row = plt.subplots(
        1,
        len(best),
        figsize=(4.4 * len(best), 3.9),
        squeeze=False,
        facecolor="none",
        layout="constrained",
    )
    for axes, (title, rows) in zip(row[0], best.items(), strict=True):
        _regions(axes, rows, sizes, names)
        axes.set(title=title, xlabel="bytes in the tensor")
    row[0][0].set_ylabel("ranks")
    seen = {name for rows in best.values() for line in rows.values() for name in line}
    patches = [
        Patch(facecolor=COLORS[index], alpha=0.55, label=name)
        for index, name in enumerate(names)
        if name in seen
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
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
            y, text = int(wide.argmax()), names[int(which)]
            axes.text(x, y, text, ha="center", va="center", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
    axes.set_yticks(range(len(rows)), [f"{ranks:,}" for ranks in rows])
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _bytes(value: float) -> str:
    power = min(int(np.log2(max(value, 1)) // 10), len(UNITS) - 1)
    return f"{value / 1024**power:g} {UNITS[power]}"
