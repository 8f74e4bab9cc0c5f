"""Pictures of the first chapter: a machine, the GPUs that a state fills, and scaling."""

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.drawing.sketches import Look, Point, note, sketch
from minidist.planner.hardware import Accelerator
from minidist.plots import style
from minidist.plots.curves import Curve, curves
from minidist.plots.style import COLORS, GREY, PART, PART_HATCH, box

# In points, 72 to an inch, so that a link's width is exact.
BOX, PITCH, LEFT, HEIGHT = 79.0, 89.0, 2.0, 314.0
WIDEST = 52.0  # the link between a GPU and its memory


# Lower and upper edge of what stands side by side.
SWITCH, GPUS, MEMORY, NICS, NETWORK = (268, 286), (194, 226), (106, 138), (56, 72), (2, 20)


def machine(gpu: Accelerator, pcie: float) -> Figure:
    """A node of eight, of which three are drawn: each link is as wide as it is fast.

    `pcie`: bytes per second from a GPU to its NIC, in each direction.
    """
    width = 2 * LEFT + PITCH * 2 + BOX
    figure, axes = sketch((width / 72, HEIGHT / 72), (0, width), (0, HEIGHT), margin=0)
    points = WIDEST / gpu.bandwidth
    right = width - LEFT
    _box(axes, LEFT, right, SWITCH, "NVLink switch")
    _box(axes, LEFT, right, NETWORK, "network switch, to other nodes")
    box(axes, 0, 44, width, 256, linewidth=1, dashed=True)
    note(axes, LEFT, 308, f"one node: eight {gpu.name}")
    for column, number in enumerate((0, 1, 7)):
        left = LEFT + PITCH * column
        middle = left + WIDEST / 2 + 2
        _box(axes, left, left + BOX, GPUS, f"GPU {number}\n{gpu.flops / 1e12:,.0f} TFLOP/s")
        _box(axes, left, left + WIDEST + 4, MEMORY, f"HBM\n{gpu.memory / 2**30:.0f} GiB")
        _box(axes, left, left + BOX, NICS, "NIC")
        _link(axes, middle, MEMORY, GPUS, gpu.bandwidth * points)
        _link(axes, middle, GPUS, SWITCH, gpu.nvlink * points)
        _link(axes, left + BOX - 6, NICS, GPUS, pcie * points)
        _link(axes, middle, NETWORK, NICS, gpu.network * points)
        style.write(axes, middle, 166, f"{gpu.bandwidth / 1e9:,.0f}\nGB/s")
        note(axes, middle + 7, 247, f"{gpu.nvlink / 1e9:.0f} GB/s")
        note(axes, left + BOX - 9, 89, f"PCIe {pcie / 1e9:.0f} GB/s", "right")
        note(axes, middle + 4, 32, f"{gpu.network / 1e9:.0f} GB/s")
    style.write(axes, LEFT + PITCH + (BOX + PITCH) / 2, 159, "…", style.TITLE)
    return figure


def _box(axes: Axes, left: float, right: float, level: Point, text: str) -> None:
    low, high = level
    box(axes, left, low, right - left, high - low, text, face=(GREY, 0.15))


def _link(axes: Axes, middle: float, below: Point, above: Point, width: float) -> None:
    look: Look = {"face": (COLORS[0], 0.55), "linewidth": 0}
    left = middle - width / 2
    box(axes, left, below[1], width, above[0] - below[1], **look).set_gid("link")


SIDE, GAP = 0.86, 0.55  # a square, and the gap between models


def filled(models: Mapping[str, Mapping[str, float]], capacity: float, across: int = 12) -> Figure:
    """Fill squares, each one GPU's memory of `capacity`, with the parts of each model's state.

    `models`: model → part of the state, as in `style.PART` → amount; `across`: squares in a row.
    """
    rows = {name: math.ceil(sum(parts.values()) / capacity) for name, parts in models.items()}
    height = sum(-(-count // across) + GAP for count in rows.values())
    figure, axes = style.single(size=(3.6, 0.26 * height + 0.35))
    top, names, middles = 0.0, [], []
    for name, parts in models.items():
        at, whole = 0.0, sum(parts.values()) / capacity
        for part, amount in parts.items():
            _fill(axes, top, at, at + amount / capacity, part, across)
            at += amount / capacity
        for square in range(rows[name]):
            row, column = divmod(square, across)
            box(axes, column, top + row, SIDE, SIDE)
        lines = -(-rows[name] // across)
        names.append(f"{name}\n{whole:.2g} GPUs" if whole > 1 else f"{name}\n{whole:.2f} GPU")
        middles.append(top + (lines - 1 + SIDE) / 2)
        top += lines + GAP
    style.table(axes)
    axes.set_yticks(middles, names)
    axes.set(xlim=(-0.1, across), ylim=(top - GAP, -0.1), aspect="equal")
    style.legend_below(figure, 2)
    return figure


def roofline_of(gpu: Accelerator, per_byte: Mapping[str, float], rate: float) -> Figure:
    """Parts of a step under a GPU's peak, by their operations per byte.

    Matrices compute at this rate, attention at its share of it; what memory limits, at the limit.
    """
    ridge = gpu.flops / gpu.bandwidth
    ends = [0.25, ridge, 8192]
    roof = [min(gpu.flops, x * gpu.bandwidth) / 1e12 for x in ends]
    lines = [Curve("peak", ends, roof, predicted=True)]
    for color, (name, x) in enumerate(per_byte.items(), 1):
        reached = rate * (gpu.attention if name == "attention" else 1)
        lines.append(Curve(name, [x], [min(reached, x * gpu.bandwidth) / 1e12], color))
    ticks = {0.5: "½", 8: "8", 64: "64", 512: "512", 4096: "4,096"}
    return curves(
        {"TFLOP per second": lines},
        x_label="operations per byte",
        x_ticks=ticks,
        marks={f"{ridge:.0f}": ridge},
    )


def _fill(axes: Axes, top: float, start: float, end: float, part: str, across: int) -> None:
    """Fill from `start` to `end`, in squares, going on in the next one where one is full."""
    while start < end - 1e-9:
        square = math.floor(start + 1e-9)
        until = min(end, square + 1)
        row, column = divmod(square, across)
        left, wide = column + (start - square) * SIDE, (until - start) * SIDE
        hatch = PART_HATCH[part].replace(".", "..")  # squares are small: of "." some would be bare
        look: Look = {"color": PART[part], "hatch": hatch, "label": part}
        axes.bar(left, SIDE, wide, top + row, align="edge", alpha=0.75, linewidth=0, **look)
        start = until
