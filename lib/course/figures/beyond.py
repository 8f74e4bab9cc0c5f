"""Pictures of tensor and pipeline parallelism."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, PHASE, RANK

RANKS, WIDE, HIGH = 4, 8, 4  # cells of a grid: tokens of a sequence, or of a layer's width
Owner = Callable[[int, int], int | None]  # (row, column) → rank, or None: all of them


def _everyone(row: int, column: int) -> None:
    return None


def _by_row(row: int, column: int) -> int:
    return row * RANKS // HIGH


def _by_column(row: int, column: int) -> int:
    return column * RANKS // WIDE


def _experts(row: int, column: int) -> int | None:
    return _by_column(row, column) if row % 2 else None


class Split(NamedTuple):
    """Whose tokens and whose weights are whose."""

    tokens: Owner
    model: Owner


SPLITS = {
    "data": Split(_by_row, _everyone),
    "tensor": Split(_everyone, _by_column),
    "pipeline": Split(_everyone, _by_row),
    "context": Split(_by_column, _everyone),
    "expert": Split(_by_row, _experts),
}
LAYERS = [f"layer {layer}" for layer in range(1, HIGH + 1)]
BLOCKS = ["attention", "experts"] * (HIGH // 2)


def split(kind: str) -> Figure:
    """Tokens to the left, the model to the right, each cut among four ranks or whole on all."""
    figure, (both,) = style.subplots(1, 2, size=(3.4, 1.25))
    tokens, model = both
    _grid(tokens, SPLITS[kind].tokens, [f"seq. {row}" for row in range(1, HIGH + 1)])
    _grid(model, SPLITS[kind].model, BLOCKS if kind == "expert" else LAYERS)
    tokens.set_title("tokens", fontsize=9)
    model.set_title("weights", fontsize=9)
    return figure


def _grid(axes: Axes, owner: Owner, names: Sequence[str]) -> None:
    by_row = len(names) > len(set(names))  # rows of a kind are apart
    boxes: dict[tuple[int | None, int], list[tuple[int, int]]] = {}
    for row, column in np.ndindex(HIGH, WIDE):
        rank = owner(row, column)
        boxes.setdefault((rank, row if by_row else 0), []).append((row, column))
    for (rank, _), cells in boxes.items():
        (top, left), (bottom, right) = min(cells), max(cells)
        size: dict[str, Any] = {"width": right + 1 - left, "height": bottom + 1 - top}
        if rank is not None:
            style.fill(axes, left, top, RANK[rank], alpha=0.45, **size)
        style.outline(axes, left, top, GREY, linewidth=0.8, **size)
        text = "all ranks" if rank is None else str(rank)
        style.write(axes, (left + right + 1) / 2, (top + bottom + 1) / 2 + 0.03, text)
    axes.set_xlim(-0.1, WIDE + 0.1)
    axes.set_xticks([])
    style.name_rows(axes, names)
    style.table(axes)


class Pass(NamedTuple):
    """A stage of the pipeline works on a micro-batch."""

    stage: int
    micro: int
    kind: str
    start: int


def pipelined(stages: int, micro: int) -> list[Pass]:
    """GPipe's schedule: all micro-batches forward, then all backward, which takes twice as long."""
    turn = stages + micro - 1
    forward = [Pass(s, m, "forward", s + m) for s in range(stages) for m in range(micro)]
    backward = [
        Pass(s, m, "backward", turn + 2 * (stages - 1 - s + m))
        for s in range(stages)
        for m in range(micro)
    ]
    return forward + backward


def pipeline_stages(stages: int, micro: int) -> Figure:
    """Who works on which micro-batch when; the rest is idle."""
    figure, grid = style.subplots(size=(4.8, 0.32 * stages + 0.35))
    axes: Axes = grid[0, 0]
    for each in pipelined(stages, micro):
        width = 1 if each.kind == "forward" else 2
        box = (PHASE[each.kind], 0.5)
        style.outline(axes, each.start, each.stage, width=width, height=0.9, facecolor=box)
        style.write(axes, each.start + width / 2, each.stage + 0.47, str(each.micro + 1))
    axes.set_xlim(0, 3 * (stages + micro - 1))
    axes.set_xticks([])
    axes.set_xlabel("time", fontsize=8)
    style.name_rows(axes, [f"rank {stage}" for stage in range(stages)], 0.45)
    style.table(axes)
    return figure
