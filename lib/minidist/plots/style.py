"""The look of all pictures: colours, transparent figures, bare axes, a legend below them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

T = TypeVar("T")
Face = tuple[str, float]  # a colour and its opacity

# Okabe and Ito's palette: colour-blind readers can tell them apart, and they are light and dark
# enough for both themes. The grey is readable on white and on black.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#767676")
GREY = COLORS[6]
# In points, for a figure of 3.4 inches: 10 pixels on a phone, 13 to 15 on a desk.
TITLE, LABEL = 8, 7
# A rank has its colour in every picture of messages, as in the stepper; what a rank holds and what
# it does have theirs. No picture says anything by colour alone.
RANK = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#E5D600", "#444B54")
PART = {
    "parameters": COLORS[0],
    "gradients": COLORS[1],
    "optimizer state": COLORS[2],
    "activations": COLORS[3],
}
# (One dot: a hatch of three is a pattern of 150 KB in each figure.)
PART_HATCH = {"parameters": "", "gradients": "///", "optimizer state": ".", "activations": "xx"}
PHASE = {
    "forward": COLORS[5],
    "backward": COLORS[0],
    "bucket": COLORS[1],
    "all_reduce": COLORS[1],
    "reduce-scatter": COLORS[1],
    "all-gather": COLORS[4],
    "optimizer": COLORS[2],
}

WORK = {"compute": GREY, "communication": COLORS[1]}
# An algorithm has its colour in every figure and widget, under its name as `algorithm=`; what NCCL
# alone has is here too.
ALGORITHM = {
    "ring": COLORS[0],
    "recursive_doubling": COLORS[1],
    "halving_doubling": COLORS[2],
    "tree": COLORS[3],
    "hierarchical": COLORS[4],
    "double_tree": COLORS[5],
    "chain": "#8A8A00",
    "naive": GREY,
    "shared_memory": "#8A5A44",
    "nvls": "#6A51A3",
    "nvls_tree": "#A88BC9",
    "native": "#444B54",
}

# Dashes of predictions, which differ without colour too.
DASHES: Any = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)), (0, (3, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", ".", "xxx", "\\\\\\", "ooo", "++")  # parts differ without colour too


def color_of(name: str) -> str:
    """The colour of an algorithm, a part, a phase or a kind of work, as sentences or code call it.

    Example:
        >>> color_of("Halving-doubling") == ALGORITHM["halving_doubling"]
        True
    """
    plain = name.lower()
    known = PART | PHASE | WORK | ALGORITHM
    return known[plain if plain in known else plain.replace("-", "_").replace(" ", "_")]


def part_look(part: str, number: int = -1) -> dict[str, Any]:
    """Colour and hatch of a part of the state, or of another `number`th part; grey of the rest."""
    try:
        color = color_of(part)
    except KeyError:
        color = COLORS[number]
    hatch = PART_HATCH.get(part, HATCHES[number] if number >= 0 else "\\\\")
    look = {"facecolor": color, "hatch": hatch, "edgecolor": "black"}
    return look | {"linewidth": 0.4, "alpha": 0.75}


def subplots(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any
) -> tuple[Figure, Any]:
    options = {"figsize": size, "facecolor": "none", "layout": "constrained"} | options
    return plt.subplots(rows, columns, squeeze=False, **options)


def thinned(
    x: Sequence[float], y: Sequence[float], most: int = 150
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The points of a curve of very many that can be seen at all, and the first and the last.

    Of each of `most` pieces of the axis they are the first, the lowest, the highest and the last.

    Args:
        x: in ascending order.
    """
    across, up = np.asarray(x, float), np.asarray(y, float)
    if len(across) <= 4 * most:
        return across, up
    edges = np.linspace(across[0], across[-1], most + 1)[1:-1]
    kept = set[int]()
    for piece in np.split(np.arange(len(across)), np.searchsorted(across, edges)):
        if len(piece):
            kept |= {piece[0], piece[up[piece].argmin()], piece[up[piece].argmax()], piece[-1]}
    order = sorted(kept)
    return across[order], up[order]


def single(*, size: tuple[float, float], **options: Any) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure, grid = subplots(size=size, **options)
    return figure, grid[0, 0]


def stacked(
    panels: Mapping[str, T], size: tuple[float, float], *, pad: float | None = None, **options: Any
) -> tuple[Figure, list[tuple[Axes, T]]]:
    """Panels with their titles, one above the other; each comes with what it shows."""
    figure, grid = subplots(len(panels), 1, size=size, **options)
    for axes, title in zip(grid[:, 0], panels, strict=True):
        axes.set_title(title, fontsize=TITLE, pad=pad, loc="left")
    return figure, list(zip(grid[:, 0], panels.values(), strict=True))


def chart(
    axes: Axes,
    labelsize: float = LABEL,
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    grid: float = 0.0,
    bare: Literal["x", "y", ""] = "",
) -> None:
    """Axes with numbers. `grid`: its opacity; `bare`: the axis that has names instead."""
    axes.set_facecolor("none")
    axes.tick_params(labelsize=labelsize)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=TITLE, loc="left")
    if x_label:
        axes.set_xlabel(x_label, fontsize=TITLE)
    if y_label:
        axes.set_ylabel(y_label, fontsize=TITLE)
    if grid:
        axes.grid(alpha=grid)
    if bare:
        axes.tick_params(axis=bare, length=0)


def table(axes: Axes, rows: Collection[object] = (), columns: Collection[object] = ()) -> None:
    """A table in place of axes: names of its rows and columns, in the middle of each."""
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=LABEL)
    axes.spines[:].set_visible(False)
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        places = [at + 0.5 for at in range(len(names))]
        axis.set_ticks(places, list(map(str, names)) or None)


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float = 1,
    height: float = 1,
    text: str = "",
    *,
    face: Face | None = None,
    edge: str | Face = GREY,
    linewidth: float = 0.8,
    dashed: bool = False,
    hatch: str = "",
    fontsize: float = LABEL,
) -> Rectangle:
    """A border, filled with `face` (a colour and its opacity), and a text in the middle.

    A thick border lies above those of the box's neighbours.
    """
    shape = Rectangle((x, y), width, height, edgecolor=edge, facecolor=face, fill=bool(face))
    shape.set(linewidth=linewidth, linestyle="--" if dashed else "-", hatch=hatch)
    shape.set_zorder(3 if linewidth > 1 else 2)
    axes.add_patch(shape)
    if text:
        write(axes, x + width / 2, y + 0.52 * height, text, fontsize)
    return shape


def write(axes: Axes, x: float, y: float, text: str, fontsize: float = LABEL, **look: Any) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=fontsize, **look)


def on_top(axes: Axes, x: float, text: str) -> None:
    """A text on top of the axes, over this place of them."""
    look: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
    axes.text(x, 1, text, fontsize=LABEL, **look)


def beside(axes: Axes, y: float, text: str, color: str = "black") -> None:
    """A text to the right of the axes, at this height of them."""
    look: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "color": color}
    axes.text(1.02, y, text, fontsize=LABEL, **look)


def legend_below(
    figure: Figure,
    columns: int,
    handles: Iterable[Artist] | Mapping[str, str | Mapping[str, Any]] | None = None,
) -> None:
    """A legend of artists, of patches (name → colour or look), or else of all that has a label."""
    if isinstance(handles, Mapping):
        looks = {key: {"color": x} if isinstance(x, str) else x for key, x in handles.items()}
        handles = [Patch(label=name, **look) for name, look in looks.items()]
    if handles is None:
        handles = [each for axes in figure.axes for each in axes.get_legend_handles_labels()[0]]
    named: dict[str, Artist] = {}
    for handle in handles:
        named.setdefault(str(handle.get_label()), handle)
    look: dict[str, Any] = {"loc": "outside lower center", "fontsize": LABEL, "frameon": False}
    figure.legend(named.values(), named, ncols=columns, **look)
