"""A picture of what goes beyond data parallelism: five ways to split."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from course.drawing.boxes import box, table_rows
from minidist.plots import style
from minidist.plots.style import RANK, TITLE

HIGH, WIDE = 4, 8  # cells of a grid: tokens of a sequence, or of a layer's width
BY_ROW, COLUMN = np.indices((HIGH, WIDE))  # which of four ranks has a cell
BY_COLUMN, ALL = COLUMN // 2, np.full((HIGH, WIDE), -1)  # -1: every rank has it
SPLITS = {  # whose tokens, and whose weights
    "data": (BY_ROW, ALL),
    "tensor": (ALL, BY_COLUMN),
    "pipeline": (ALL, BY_ROW),
    "context": (BY_COLUMN, ALL),
    "expert": (BY_ROW, np.where(BY_ROW % 2, BY_COLUMN, ALL)),
}
SEQUENCES = [f"seq. {row}" for row in range(1, HIGH + 1)]
LAYERS = [f"layer {layer}" for layer in range(1, HIGH + 1)]
BLOCKS = ["attention", "experts"] * (HIGH // 2)


def splits() -> Figure:
    """For each kind a row: tokens to the left, weights to the right, each cut or for all ranks."""
    figure, grid = style.subplots(len(SPLITS), 2, size=(3.7, 0.98 * len(SPLITS) + 0.2))
    for (left, right), (kind, (tokens, weights)) in zip(grid, SPLITS.items(), strict=True):
        _grid(left, tokens, SEQUENCES)
        _grid(right, weights, BLOCKS if kind == "expert" else LAYERS)
        left.set_title(f"{kind}: tokens", fontsize=TITLE, loc="left")
        right.set_title("weights", fontsize=TITLE, loc="left")
    return figure


def _grid(axes: Axes, ranks: NDArray[np.int_], names: Sequence[str]) -> None:
    boxes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, column in np.ndindex(HIGH, WIDE):
        apart = row if names is BLOCKS else 0  # though a rank has several
        boxes.setdefault((int(ranks[row, column]), apart), []).append((row, column))
    for (rank, _), cells in boxes.items():
        (top, left), (bottom, right) = min(cells), max(cells)
        text, face = ("all ranks", None) if rank < 0 else (str(rank), (RANK[rank], 0.45))
        box(axes, left, top, right + 1 - left, bottom + 1 - top, text, face=face)
    table_rows(axes, names, WIDE + 0.1, left=-0.1)
