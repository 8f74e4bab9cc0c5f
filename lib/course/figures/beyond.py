"""Pictures of tensor and pipeline parallelism."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.boxes import box, single
from minidist.plots import style
from minidist.plots.style import PHASE, RANK

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


SPLITS: dict[str, tuple[Owner, Owner]] = {  # whose tokens, and whose weights
    "data": (_by_row, _everyone),
    "tensor": (_everyone, _by_column),
    "pipeline": (_everyone, _by_row),
    "context": (_by_column, _everyone),
    "expert": (_by_row, _experts),
}
SEQUENCES = [f"seq. {row}" for row in range(1, HIGH + 1)]
LAYERS = [f"layer {layer}" for layer in range(1, HIGH + 1)]
BLOCKS = ["attention", "experts"] * (HIGH // 2)


def split(kind: str) -> Figure:
    """Tokens to the left, the model to the right, each cut among four ranks or whole on all."""
    figure, (panels,) = style.subplots(1, 2, size=(3.4, 1.25))
    names = SEQUENCES, BLOCKS if kind == "expert" else LAYERS
    titles = "tokens", "weights"
    for axes, owner, rows, title in zip(panels, SPLITS[kind], names, titles, strict=True):
        _grid(axes, owner, rows)
        axes.set_title(title, fontsize=9)
    return figure


def _grid(axes: Axes, owner: Owner, names: Sequence[str]) -> None:
    by_row = len(names) > len(set(names))  # rows of a kind are apart
    boxes: dict[tuple[int | None, int], list[tuple[int, int]]] = {}
    for row, column in np.ndindex(HIGH, WIDE):
        rank = owner(row, column)
        boxes.setdefault((rank, row if by_row else 0), []).append((row, column))
    for (rank, _), cells in boxes.items():
        (top, left), (bottom, right) = min(cells), max(cells)
        face = None if rank is None else (RANK[rank], 0.45)
        text = "all ranks" if rank is None else str(rank)
        box(axes, left, top, right + 1 - left, bottom + 1 - top, text, face=face)
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
    works = [*product(range(stages), range(micro))]
    forward = [Pass(s, m, "forward", s + m) for s, m in works]
    return forward + [Pass(s, m, "backward", turn + 2 * (stages - 1 - s + m)) for s, m in works]


def pipeline_stages(stages: int, micro: int) -> Figure:
    """Who works on which micro-batch when; the rest is idle."""
    figure, axes = single(size=(4.8, 0.32 * stages + 0.35))
    for each in pipelined(stages, micro):
        width = 1 if each.kind == "forward" else 2
        face, text = (PHASE[each.kind], 0.5), str(each.micro + 1)
        box(axes, each.start, each.stage, width, 0.9, text, face=face, linewidth=0.5)
    axes.set_xlim(0, 3 * (stages + micro - 1))
    axes.set_xticks([])
    axes.set_xlabel("time", fontsize=8)
    style.name_rows(axes, [f"rank {stage}" for stage in range(stages)], 0.45)
    style.table(axes)
    return figure
