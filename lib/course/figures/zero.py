"""Pictures of ZeRO: who holds which part of the state, the flat layout, and a step."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course.figures.boxes import Look, box, single
from course.figures.memory import part_look
from minidist.memory.state import DtypePolicy, share, state
from minidist.parallel.sharding.layouts import Flat
from minidist.plots import style
from minidist.plots.style import GREY, PHASE, RANK

WIDE = 3.7  # inches, of every picture here
PARTS = {"parameters": "weights", "gradients": "gradients", "optimizer state": "optimizer"}
BAR = 0.78  # of a rank's column


def who_holds(policy: DtypePolicy, ranks: int, stages: Mapping[str, int]) -> Figure:
    """State with Adam, to scale: a panel for each strategy, a column for each rank.

    What a rank holds is filled: all of a part, or the slice with the rank's number; what it does
    not hold is an empty outline. `stages`: title → stage, as `share` takes it.
    """
    whole, rows = state(ranks, policy), -(-len(stages) // 2)  # a parameter for each rank
    figure, grid = style.subplots(rows, 2, size=(WIDE, 1.9 * rows), sharey=True)
    for axes, (title, stage) in zip(grid.flat, stages.items(), strict=False):
        own = share(whole, ranks, stage)
        for rank in range(ranks):  # the parts on top of each other
            bottom, left = 0.0, rank - BAR / 2
            for name, part in PARTS.items():
                full, held = getattr(whole, part), getattr(own, part)
                start = bottom + (full * rank / ranks if held < full else 0)
                look = {"linewidth": 0.4, "alpha": 0.85, **part_look(name)}
                axes.bar(left, held, BAR, start, align="edge", **look)
                style.outline(axes, left, bottom, GREY, width=BAR, height=full, linewidth=0.6)
                bottom += full
        axes.set_title(f"{title}: {own.total / ranks:g} bytes", fontsize=style.TITLE)
        axes.set(xlim=(-0.5, ranks - 0.5), ylim=(0, whole.total))
        axes.set_xticks(range(ranks), map(str, range(ranks)))
        axes.set_xlabel("rank", fontsize=style.LABEL)
        style.table(axes)
    heights, bottom = [], 0.0
    for part in PARTS.values():
        heights.append(bottom + getattr(whole, part) / 2)
        bottom += getattr(whole, part)
    names = [name.replace(" ", "\n") for name in PARTS]
    grid[0, 0].set_yticks(heights, names)
    return figure


def flat_layout(sizes: Mapping[str, int], ranks: int) -> Figure:
    """Parameters of these sizes end to end in a padded buffer, and the ranks' shards of it."""
    figure, axes = single(size=(WIDE, 1.1))
    names = [f"{name}[{i}]" for name, size in sizes.items() for i in range(size)]
    shard = Flat([torch.Size([size]) for size in sizes.values()], ranks, 0).shard_numel
    cells = ranks * shard
    for x, name in enumerate([*names, *["pad"] * (cells - len(names))]):
        box(axes, x, 0, 1, 1, name)
    for rank in range(ranks):
        look: Look = {"edge": RANK[rank], "face": (RANK[rank], 0.35), "linewidth": 1.2}
        box(axes, rank * shard + 0.04, 1.45, shard - 0.08, 1, f"rank {rank}", **look)
    axes.set(xlim=(-0.05, cells + 0.05), ylim=(2.55, -0.1))
    axes.set_xticks([])
    axes.set_yticks([0.5, 1.95], ["buffer", "shards"])
    style.table(axes)
    return figure


LAYERS, RANKS = 3, 4
FORWARD, BACKWARD, MESSAGE, UPDATE = 1, 2, 1, 2  # how long each takes for a layer; UPDATE: for all
COMPUTE, NETWORK = 0, 1  # lanes
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
MOMENTS = 2  # times a layer's weights


class Box(NamedTuple):
    """Something that runs or travels."""

    lane: int
    kind: str  # of PHASE
    layer: int | None
    start: float
    end: float


class Step:
    """A step that is being laid out; each lane does one thing after another."""

    def __init__(self, stage: int) -> None:
        self.boxes: list[Box] = []
        self.free = [0.0, 0.0]  # when each lane is
        part = 1 / RANKS
        self.held = {
            "parameters": LAYERS * (part if stage == 3 else 1),
            "gradients": 0.0,
            "optimizer state": MOMENTS * LAYERS * (part if stage else 1),
        }
        self.changes: list[tuple[float, str, float]] = []

    def add(
        self, kind: str, layer: int | None, takes: float, after: float = 0, **change: float
    ) -> float:
        """Begin when the lane is free and not before `after`; at the end a part changes."""
        lane = NETWORK if kind in ("reduce-scatter", "all-gather") else COMPUTE
        start = max(self.free[lane], after)
        self.free[lane] = end = start + takes
        self.boxes.append(Box(lane, kind, layer, start, end))
        self.changes += [(end, part, amount) for part, amount in change.items()]
        return end

    def curve(self) -> list[tuple[float, dict[str, float]]]:
        """(Time, what is held from then on), in layers' weights."""
        now, points = dict(self.held), {0.0: dict(self.held)}
        for when, part, amount in sorted(self.changes, key=lambda change: change[0]):
            now[part] += amount
            points[when] = dict(now)
        points[max(self.free)] = dict(now)
        return [*points.items()]


def lay_out(stage: int) -> Step:
    """The plain form of each stage: a bucket for each layer, nothing gathered ahead."""
    step, part, drop = Step(stage), 1 / RANKS, 1 / RANKS - 1
    for layer in range(1, LAYERS + 1):
        ready = _gathered(step, layer) if stage == 3 else 0.0
        step.add("forward", layer, FORWARD, ready, **({"parameters": -1} if stage == 3 else {}))
    for layer in range(LAYERS, 0, -1):
        ready = _gathered(step, layer) if stage == 3 else 0.0
        change: dict[str, float] = {"gradients": 1, **({"parameters": -1} if stage == 3 else {})}
        done = step.add("backward", layer, BACKWARD, ready, **change)
        if stage != 1:
            change = {"gradients": drop} if stage else {}
            step.add("reduce-scatter", layer, MESSAGE, done, **change)
        if stage == 0:
            step.add("all-gather", layer, MESSAGE)
    for layer in range(LAYERS, 0, -1) if stage == 1 else ():
        step.add("reduce-scatter", layer, MESSAGE, step.free[COMPUTE], gradients=drop)
    left = -LAYERS * (part if stage else 1)
    share = UPDATE * (part if stage else 1)
    done = step.add("optimizer", None, share, step.free[NETWORK], gradients=left)
    for layer in range(1, LAYERS + 1) if stage in (1, 2) else ():
        step.add("all-gather", layer, MESSAGE, done)
    return step


def _gathered(step: Step, layer: int) -> float:
    """Gather a layer's weights, which are not there before the layer needs them."""
    start = max(step.free)
    step.changes.append((start, "parameters", 1))
    return step.add("all-gather", layer, MESSAGE, step.free[COMPUTE])


def zero_step(stages: Iterable[int]) -> Figure:
    """A step on one of four ranks: lanes for compute and network, and what is held below them."""
    chosen = list(stages)
    size = WIDE, 1.25 * len(chosen) + 0.6
    figure, grid = style.subplots(2 * len(chosen), 1, size=size, sharex=True)
    length = max(max(lay_out(stage).free) for stage in range(len(STAGES)))
    for number, stage in enumerate(chosen):
        step, (lanes, memory) = lay_out(stage), grid[2 * number : 2 * number + 2, 0]
        _lanes(lanes, step)
        _memory(memory, step)
        lanes.set_title(STAGES[stage], fontsize=style.TITLE, loc="left")
    grid[0, 0].set_xlim(0, length + 1)
    grid[-1, 0].set_xlabel("time", fontsize=style.LABEL)
    legend = [Patch(label=part, linewidth=0.4, **part_look(part)) for part in lay_out(0).held]
    style.legend_below(figure, 3, legend)
    return figure


SHORT = {"forward": "F", "backward": "B", "reduce-scatter": "R", "all-gather": "A"}


def _lanes(axes: Axes, step: Step) -> None:
    for each in step.boxes:
        face, name = (PHASE[each.kind], 0.5), f"{SHORT.get(each.kind)}{each.layer}"
        text, width = name if each.layer else "", each.end - each.start
        box(axes, each.start, each.lane, width, 0.9, text, face=face, linewidth=0.5)
        if not each.layer:
            style.write(axes, each.end + 0.7, each.lane + 0.47, "opt")
    style.name_rows(axes, ("compute", "network"), 0.45)
    axes.set_xticks([])
    style.table(axes)


def _memory(axes: Axes, step: Step) -> None:
    when = [time for time, _ in step.curve()]
    bottom = [0.0] * len(when)
    for part in ("parameters", "optimizer state", "gradients"):
        top = [low + held[part] for low, (_, held) in zip(bottom, step.curve(), strict=True)]
        look = {"linewidth": 0.4, "alpha": 0.7, **part_look(part)}
        axes.fill_between(when, bottom, top, step="post", **look)
        bottom = top
    axes.set_ylim(0, (2 + MOMENTS) * LAYERS)
    axes.set_yticks([(2 + MOMENTS) * LAYERS / 2], ["memory"])
    style.table(axes)
