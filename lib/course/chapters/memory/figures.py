"""Pictures of memory: a step's parts over time, and what one block keeps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from course.drawing.sketches import Look, arrow, note
from minidist.plots import style
from minidist.plots.cells import Cell, bar, cells, ending, stacked_bars
from minidist.plots.curves import bands
from minidist.plots.style import GREY

WIDE = 3.7  # inches, of every picture here
LOW = 0.06  # share of the scale: a part that never gets higher has no name in it
PHASES = {"forward": 0.0, "backward": 1.0, "step": 3.0}  # the beginning of each
END = 3.75  # end of the optimizer's step
Curve = NDArray[np.float64]


def step_memory(
    panels: Mapping[str, Mapping[str, float]],
    blocks: int,
    *,
    limit: tuple[str, float] | None = None,
    measured: Mapping[str, Mapping[str, Any]] | None = None,
) -> Figure:
    """Parts in GB stacked over one step, a panel for each title, on one scale; peaks are marked.

    Activations grow in forward and shrink in backward, block by block, while gradients grow; logits
    are there in between. Any other part is there while the optimizer steps, not to scale.

    `panels`: title → part → its most, the lowest part first; `limit`: name and height of a line;
    `measured`: title → a row of the record "gpu", drawn as dots.
    """
    up = np.linspace(0, 1, blocks + 1)
    when = np.array([*up, *(1 + 2 * up), 3.0, END])
    full, none = np.ones(len(when)), np.zeros(blocks + 1)
    shapes = {  # over `when`, of the most
        "parameters": full,
        "optimizer state": full,
        "gradients": np.array([*none, *up, 1, 1]),
        "activations": np.array([*up, *up[::-1], 0, 0]),
        "logits": np.array([*none[1:], 1, 1, *none[1:], 0, 0]),
    }
    brief = np.array([*none, *none, 1, 1])
    drawn = {
        title: {part: most * shapes.get(part, brief) for part, most in parts.items()}
        for title, parts in panels.items()
    }
    figure, grid = style.subplots(len(panels), 1, size=(WIDE, 2.1 * len(panels)), sharey=True)
    top = max(np.sum([*parts.values()], axis=0).max() for parts in drawn.values())
    for axes, (title, parts) in zip(grid.flat, drawn.items(), strict=True):
        for part, below in bands(axes, when, parts).items():
            if parts[part].max() >= LOW * top:
                _name(axes, part, when, below, parts[part])
        if measured:
            axes.plot(*zip(*_seen(measured[title]), strict=True), ".", color="black", markersize=3)
        _mark_peak(axes, when, np.sum([*parts.values()], axis=0))
        if limit:
            name, height = limit
            axes.axhline(height, color="black", linestyle="--", linewidth=1)
            note(axes, END, height + 0.01 * top, name, "right", va="bottom", fontsize=style.LABEL)
        for start in PHASES.values():
            axes.axvline(start, color=GREY, linewidth=0.6, linestyle=":")
        axes.set(xlim=(0, END), xticks=[], ylim=(0, 1.14 * top))
        style.chart(axes, x_label=title, y_label="GB")
    for (name, start), end in zip(PHASES.items(), (1.0, 3.0, END), strict=True):
        style.on_top(grid[0, 0], (start + end) / 2, name)
    return figure


def _seen(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Points in step and GB: after each block, and peaks as backward begins and in the update."""
    forward, backward = row["levels"]["forward"], row["levels"]["backward"]
    blocks, peak = len(forward), row["peak_bytes_of"]
    points = [(done / blocks, nbytes) for done, nbytes in enumerate([row["held_bytes"], *forward])]
    points += [(1.0, peak["backward"])]
    points += [(1 + 2 * done / blocks, nbytes) for done, nbytes in enumerate(backward, 1)]
    points += [((3 + END) / 2, peak["update"])]
    return [(when, nbytes / 1e9) for when, nbytes in points]


def _mark_peak(axes: Axes, when: Curve, total: Curve) -> None:
    highest, at = total.max(), when[total.argmax()]
    axes.plot([at], [highest], "o", color="black", markersize=4)
    look: Look = {"ha": "right" if at > 0.8 * END else "center", "fontsize": style.TITLE}
    where = (at, highest), (0, 5)
    axes.annotate(f"peak {highest:.0f} GB", *where, textcoords="offset points", **look)


def _name(axes: Axes, part: str, when: Curve, below: Curve, amount: Curve) -> None:
    """Write a part's name in the middle of where it is highest; beside it, if it is a spike."""
    there, highest = when[amount > 0], np.flatnonzero(amount == amount.max())
    first, last = highest[0], highest[-1]
    middle = below[first] + amount[first] * (0.5 if when[last] > when[first] else 0.42)
    align = "center" if there[-1] > there[0] else "right"
    x = (when[first] + when[last]) / 2
    text = axes.text(x, middle, part, ha=align, va="center", fontsize=style.LABEL)
    text.set_bbox({"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.2})


def rank_memory(
    ranks: Mapping[str, Mapping[str, float]],
    limit: tuple[str, float],
    peaks: Mapping[str, float] | None = None,
) -> Figure:
    """One rank's parts in GB laid end to end, a bar for each strategy, with its sum.

    `limit`: name and amount of a line across all bars; `peaks`: marked instead of the sum.
    """
    marks = ("peak", peaks) if peaks else None
    return stacked_bars(ranks, x_label="GB", marks=marks, limit=limit)


BOX, HIGH, CELL = 0.85, 0.66, 0.27  # width and height of an operation, width of d numbers
BARS = BOX + 0.22  # where the bars begin
GPT2_BLOCK = (  # operation, the tensor that it keeps, and how many times d numbers for a token
    ("LayerNorm", "the block's input", 1),
    ("linear", "its input", 1),
    ("attention", "queries, keys, values", 3),
    ("linear", "what attention returns", 1),
    ("+", "nothing", 0),
    ("LayerNorm", "its input", 1),
    ("linear", "its input", 1),
    ("GELU", "its input", 4),
    ("linear", "what GELU returns", 4),
    ("+", "nothing", 0),
)


def block_memory() -> Figure:
    """Operations of a block of GPT-2 run downward; beside each what autograd keeps for it."""
    kept = bar(style.part_look("activations"), CELL)
    rows = []
    for name, tensor, amount in GPT2_BLOCK:
        text = f"{amount if amount > 1 else ''}d  {tensor}" if amount else tensor
        beside = [*[kept] * amount, ending(text)]
        rows.append([Cell(name, wide=BOX), beside[0]._replace(at=BARS), *beside[1:]])
    total = sum(amount for *_, amount in GPT2_BLOCK)
    rows.append([ending(f"together {total}d")._replace(at=BARS)])
    figure, axes = style.single(size=(WIDE, 0.34 * len(rows)))
    cells(axes, rows, tall=HIGH)
    for row in range(1, len(GPT2_BLOCK)):
        ends = (BOX / 2, row - 0.5 + HIGH / 2), (BOX / 2, row + 0.5 - HIGH / 2)
        arrow(axes, *ends, GREY, 0.8, shrinkA=0, shrinkB=0, mutation_scale=8)
    return figure
