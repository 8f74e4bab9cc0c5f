"""Pictures of memory: a step's parts over time, and what one block keeps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from course.figures.boxes import Look, box, single, sketch
from minidist.plots import style
from minidist.plots.style import GREY, PART, PART_HATCH

WIDE = 3.7  # inches, of every picture here
LOW = 0.06  # of the scale: a part that never gets higher has no name in it
END = 3.75  # of the optimizer's step; forward takes 1, and backward 2


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
    phases = {"forward": (0.0, 1.0), "backward": (1.0, 3.0), "step": (3.0, END)}
    up = [block / blocks for block in range(blocks + 1)]
    when = [*up, *(1 + 2 * done for done in up), 3.0, END]
    shapes = {
        "parameters": [1.0] * len(when),
        "optimizer state": [1.0] * len(when),
        "gradients": [0.0] * len(up) + up + [1.0, 1.0],
        "activations": up + up[::-1] + [0.0, 0.0],
        "logits": [0.0] * blocks + [1.0, 1.0] + [0.0] * (blocks + 2),
    }
    brief = [0.0] * 2 * len(up) + [1.0, 1.0]

    def amounts(parts: Mapping[str, float]) -> dict[str, NDArray[np.float64]]:
        return {part: most * np.array(shapes.get(part, brief)) for part, most in parts.items()}

    drawn = {title: amounts(parts) for title, parts in panels.items()}
    figure, grid = style.subplots(len(panels), 1, size=(WIDE, 2.1 * len(panels)), sharey=True)
    top = max(np.sum([*parts.values()], axis=0).max() for parts in drawn.values())
    for axes, (title, parts) in zip(grid.flat, drawn.items(), strict=True):
        below = np.zeros(len(when))
        for part, amount in parts.items():
            look = {"linewidth": 0.4, "alpha": 0.7, **part_look(part)}
            axes.fill_between(when, below, below + amount, **look)
            _name(axes, part, when, below, amount, top)
            below = below + amount
        if measured:
            axes.plot(*zip(*_seen(measured[title]), strict=True), ".", color="black", markersize=3)
        _mark_peak(axes, when, below.tolist())
        if limit:
            name, height = limit
            axes.axhline(height, color="black", linestyle="--", linewidth=1)
            place = when[-1], height + 0.01 * top
            axes.text(*place, name, fontsize=style.LABEL, ha="right", va="bottom")
        for start, _ in phases.values():
            axes.axvline(start, color=GREY, linewidth=0.6, linestyle=":")
        axes.set(xlim=(when[0], when[-1]), xticks=[], ylim=(0, 1.14 * top), ylabel="GB")
        style.chart(axes)
        axes.set_xlabel(title, fontsize=style.TITLE)
    for name, (start, end) in phases.items():
        place = (start + end) / 2, 1.18 * top
        grid[0, 0].text(*place, name, ha="center", fontsize=style.TITLE)
    return figure


def part_look(part: str) -> Look:
    """Colour and hatch of a part of the state; grey for what is no part of `PART`."""
    look = {"facecolor": PART.get(part, GREY), "hatch": PART_HATCH.get(part, "\\\\")}
    return look | {"edgecolor": "black"}


def _seen(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    """When in the step, and GB: after each block, and the most as backward begins and in update."""
    forward, backward = row["levels"]["forward"], row["levels"]["backward"]
    blocks, peak = len(forward), row["peak_bytes_of"]
    points = [(0.0, row["held_bytes"])]
    points += [(done / blocks, nbytes) for done, nbytes in enumerate(forward, 1)]
    points += [(1.0, peak["backward"])]
    points += [(1 + 2 * done / blocks, nbytes) for done, nbytes in enumerate(backward, 1)]
    points += [((3 + END) / 2, peak["update"])]
    return [(when, nbytes / 1e9) for when, nbytes in points]


def _mark_peak(axes: Axes, when: Sequence[float], total: Sequence[float]) -> None:
    highest = max(total)
    at = when[total.index(highest)]
    axes.plot([at], [highest], "o", color="black", markersize=4)
    axes.annotate(
        f"peak {highest:.0f} GB", (at, highest), (0, 5), textcoords="offset points",
        ha="right" if at > 0.8 * when[-1] else "center", fontsize=style.TITLE,
    )  # fmt: skip


def _name(
    axes: Axes,
    part: str,
    when: Sequence[float],
    below: NDArray[np.float64],
    amount: NDArray[np.float64],
    top: float,
) -> None:
    """Write a part's name in the middle of where it is highest; beside it, if it is a spike."""
    if amount.max() < LOW * top:
        return
    there = [at for at, each in zip(when, amount, strict=True) if each]
    highest = np.flatnonzero(amount == amount.max())
    first, last = highest[0], highest[-1]
    flat = when[last] > when[first]
    middle = below[first] + amount[first] * (0.5 if flat else 0.42)
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
    figure, axes = single(size=(WIDE, 0.42 * len(ranks) + 1.3))
    for row, (name, parts) in enumerate(ranks.items()):
        left = 0.0
        for part, amount in parts.items():
            look = {"linewidth": 0.5, "alpha": 0.75, **part_look(part)}
            axes.barh(row, amount, 0.55, left, label=part, **look)
            left += amount
        if peaks:
            axes.plot([peaks[name]] * 2, [row - 0.4, row + 0.4], color="black", lw=2.5)
        else:
            look = {"textcoords": "offset points", "fontsize": style.LABEL, "va": "center"}
            axes.annotate(f"{left:.0f}", (left, row), (4, 0), **look)
    name, amount = limit
    axes.axvline(amount, color="black", linestyle="--", linewidth=1, label=name)
    axes.set_yticks(range(len(ranks)), list(ranks))
    axes.invert_yaxis()
    axes.set_xlabel("GB", fontsize=style.LABEL)
    style.chart(axes)
    style.legend_below(figure, 2)
    return figure


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
    count = len(GPT2_BLOCK)
    x, y = (-0.03, BARS + 4 * CELL + 1.3), (count + 0.6, -0.1)
    figure, axes = sketch((WIDE, 0.34 * count + 0.4), x, y)
    for row, (name, kept, amount) in enumerate(GPT2_BLOCK):
        box(axes, 0, row, BOX, HIGH, name)
        if row:
            look = {"arrowstyle": "-|>", "color": GREY, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (BOX / 2, row), (BOX / 2, row - 1 + HIGH), arrowprops=look)
        for cell in range(amount):
            face = PART["activations"], 0.75
            box(axes, BARS + cell * CELL, row, CELL, HIGH, edge="black", face=face, linewidth=0.5)
            axes.patches[-1].set_hatch(PART_HATCH["activations"])
        text = f"{amount if amount > 1 else ''}d  {kept}" if amount else kept
        right = BARS + amount * CELL + 0.07 * bool(amount)
        axes.text(right, row + HIGH / 2, text, va="center", fontsize=style.LABEL)
    total = sum(amount for _, _, amount in GPT2_BLOCK)
    axes.text(BARS, count + 0.25, f"together {total}d", va="center", fontsize=style.TITLE)
    return figure
