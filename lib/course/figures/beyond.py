"""Pictures of what goes beyond data parallelism: five ways to split, and two pipelines."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.boxes import box
from minidist.plots import style
from minidist.plots.style import LABEL, PHASE, RANK, TITLE

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


def splits(kinds: Sequence[str] = tuple(SPLITS)) -> Figure:
    """For each kind a row: tokens to the left, weights to the right, each cut or for all ranks."""
    figure, grid = style.subplots(len(kinds), 2, size=(3.7, 0.98 * len(kinds) + 0.2))
    for kind, panels in zip(kinds, grid, strict=True):
        names = SEQUENCES, BLOCKS if kind == "expert" else LAYERS
        for axes, owner, rows in zip(panels, SPLITS[kind], names, strict=True):
            _grid(axes, owner, rows)
        panels[0].set_title(f"{kind}: tokens", fontsize=TITLE, loc="left")
        panels[1].set_title("weights", fontsize=TITLE, loc="left")
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
        box(axes, left, top, right + 1 - left, bottom + 1 - top, text, face=face, fontsize=LABEL)
    axes.set_xlim(-0.1, WIDE + 0.1)
    axes.set_xticks([])
    style.name_rows(axes, names)
    style.table(axes)


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


def pipelined(stages: int, micro: int, order: Order = gpipe) -> list[Pass]:
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
    size = 3.75, len(SCHEDULES) * (0.24 * stages + 0.42)
    figure, grid = style.subplots(len(SCHEDULES), 1, size=size)
    for axes, (name, order) in zip(grid[:, 0], SCHEDULES.items(), strict=True):
        passes = pipelined(stages, micro, order)
        end = max(each.end for each in passes)
        for each in passes:
            face, text = (PHASE[each.kind], 0.5), str(each.micro + 1)
            place = each.start, each.stage, TAKES[each.kind], 0.9
            box(axes, *place, text, face=face, linewidth=0.5, fontsize=LABEL)
        for stage, most in enumerate(most_held(passes)):
            axes.text(end + 0.5, stage + 0.45, f"holds {most}", va="center", fontsize=LABEL)
        axes.set_xlim(0, end + 5)
        axes.set_xticks([])
        axes.set_title(name, fontsize=TITLE, loc="left")
        style.name_rows(axes, [f"rank {stage}" for stage in range(stages)], 0.45)
        style.table(axes)
    return figure


def bubble(passes: Sequence[Pass]) -> float:
    """The part of the time in which a stage waits, on average."""
    busy = sum(TAKES[each.kind] for each in passes)
    stages = 1 + max(each.stage for each in passes)
    return 1 - busy / (stages * max(each.end for each in passes))
