"""A picture of what goes beyond data parallelism: five ways to split."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from minidist.plots import style
from minidist.plots.cells import Cell, cells
from minidist.plots.style import RANK

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
        layers = BLOCKS if kind == "expert" else LAYERS
        cells(left, _parts(tokens, SEQUENCES), SEQUENCES, title=f"{kind}: tokens")
        cells(right, _parts(weights, layers), layers, title="weights")
    return figure


def _parts(ranks: NDArray[np.int_], names: Sequence[str]) -> list[list[Cell]]:
    """A cell over all that a rank has, or in each row, if it has several blocks."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, column in np.ndindex(HIGH, WIDE):
        found.setdefault((int(ranks[row, column]), row * (names is BLOCKS)), []).append(
            (row, column)
        )
    rows: list[list[Cell]] = [[] for _ in range(HIGH)]
    for (rank, _), own in found.items():
        (top, left), (bottom, right) = min(own), max(own)
        text, face = ("all ranks", None) if rank < 0 else (str(rank), (RANK[rank], 0.45))
        rows[top].append(Cell(text, face, right + 1 - left, left, high=bottom + 1 - top))
    return rows
