"""Pictures of what goes beyond data parallelism: five ways to split, and two pipelines."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from course.figures.boxes import box, rank_names, stacked, table_rows
from minidist.plots import style
from minidist.plots.style import LABEL, PHASE, RANK, TITLE

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


# ---- pipelines ----

TAKES = {"forward": 1, "backward": 2}


class Pass(NamedTuple):
    """A stage of the pipeline works on a micro-batch."""

    stage: int
    micro: int
    kind: str
    start: int

    @property
    def end(self) -> int:
        return self.start + TAKES[self.kind]


def gpipe(stage: int, stages: int, micro: int) -> Iterator[tuple[str, int]]:
    """What a stage does in order: all forward passes, then all backward passes."""
    yield from (("forward", m) for m in range(micro))
    yield from (("backward", m) for m in range(micro))


def one_f_one_b(stage: int, stages: int, micro: int) -> Iterator[tuple[str, int]]:
    """What a stage does in order: forward until a gradient comes back, then one of each in turn."""
    ahead = min(micro, stages - 1 - stage)
    yield from (("forward", m) for m in range(ahead))
    for m in range(micro):
        if m + ahead < micro:
            yield "forward", m + ahead
        yield "backward", m


Order = Callable[[int, int, int], Iterator[tuple[str, int]]]
SCHEDULES: dict[str, Order] = {"GPipe": gpipe, "1F1B": one_f_one_b}


def pipelined(stages: int, micro: int, order: Order) -> list[Pass]:
    """When each stage does what: in its order, as soon as its neighbour has sent what it needs."""
    waiting = [[*order(stage, stages, micro)] for stage in range(stages)]
    free, ends = [0] * stages, dict[tuple[str, int, int], int]()
    passes: list[Pass] = []
    while any(waiting):
        for stage, works in enumerate(waiting):
            if not works:
                continue
            kind, m = works[0]
            before = stage - 1 if kind == "forward" else stage + 1
            arrived = ends.get((kind, before, m)) if before in range(stages) else 0
            if kind == "backward" and stage == stages - 1:
                arrived = ends.get(("forward", stage, m))
            if arrived is None:
                continue
            passes.append(Pass(stage, m, kind, max(free[stage], arrived)))
            ends[kind, stage, m] = free[stage] = passes[-1].end
            works.pop(0)
    return passes


def most_held(passes: Sequence[Pass]) -> list[int]:
    """Of each stage the most micro-batches whose activations it keeps at a time."""
    held, most = Counter[int](), Counter[int]()
    for each in sorted(passes, key=lambda each: (each.stage, each.start)):
        held[each.stage] += 1 if each.kind == "forward" else -1
        most[each.stage] = max(most[each.stage], held[each.stage])
    return [most[stage] for stage in sorted(most)]


def pipelines(stages: int, micro: int) -> Figure:
    """A panel for each schedule: who works on which micro-batch when, and the most it holds."""
    figure, panels = stacked(SCHEDULES, (3.75, len(SCHEDULES) * (0.24 * stages + 0.42)))
    for axes, order in panels:
        passes = pipelined(stages, micro, order)
        end = max(each.end for each in passes)
        for each in passes:
            place = each.start, each.stage, TAKES[each.kind], 0.9
            box(axes, *place, str(each.micro + 1), face=(PHASE[each.kind], 0.5), linewidth=0.5)
        for stage, most in enumerate(most_held(passes)):
            axes.text(end + 0.5, stage + 0.45, f"holds {most}", va="center", fontsize=LABEL)
        table_rows(axes, rank_names(stages), end + 5, left=0, offset=0.45)
    return figure


def bubble(passes: Sequence[Pass]) -> float:
    """The part of the time in which a stage waits, on average."""
    busy = sum(TAKES[each.kind] for each in passes)
    stages = 1 + max(each.stage for each in passes)
    return 1 - busy / (stages * max(each.end for each in passes))
