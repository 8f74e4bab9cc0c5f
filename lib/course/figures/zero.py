"""Pictures of ZeRO: who holds which part of the state, the flat layout, and a step."""

from collections.abc import Iterable, Mapping

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
from minidist.schedule.lanes import Span, Work, end, spans

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
LANES = COMPUTE, NETWORK = "compute", "network"
SHORT = {"forward": "F", "backward": "B", "reduce-scatter": "R", "all-gather": "A"}
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
MOMENTS = 2  # times a layer's weights


def step_works(stage: int) -> list[Work]:
    """The plain form of each stage: a bucket for each layer, nothing gathered ahead."""
    works, last = list[Work](), dict[str, list[int]]()  # lane → the place of its last work

    def add(kind: str, takes: float, after: list[int], layer: int = 0) -> list[int]:
        lane, text = (NETWORK if "-" in kind else COMPUTE), f"{SHORT[kind]}{layer}" if layer else ""
        works.append(Work(lane, kind, takes, after, text))
        last[lane] = [len(works) - 1]
        return last[lane]

    layers = range(1, LAYERS + 1)
    for layer in layers:
        there = add("all-gather", MESSAGE, last.get(COMPUTE, []), layer) if stage == 3 else []
        add("forward", FORWARD, there, layer)
    for layer in layers[::-1]:
        there = add("all-gather", MESSAGE, last[COMPUTE], layer) if stage == 3 else []
        done = add("backward", BACKWARD, there, layer)
        if stage != 1:
            done = add("reduce-scatter", MESSAGE, done, layer)
        if stage == 0:
            add("all-gather", MESSAGE, done, layer)
    for layer in layers[::-1] if stage == 1 else ():
        add("reduce-scatter", MESSAGE, last[COMPUTE], layer)
    done = add("optimizer", UPDATE / RANKS if stage else UPDATE, last[NETWORK])
    for layer in layers if stage in (1, 2) else ():
        add("all-gather", MESSAGE, done, layer)
    return works


Held = list[tuple[float, dict[str, float]]]


def held_in(stage: int, step: list[Span]) -> Held:
    """(Time, what is held from then on) in layers' weights; a gather takes memory as it starts."""
    part = 1 / RANKS if stage else 1
    weights = part if stage == 3 else 1
    now = {
        "parameters": LAYERS * weights,
        "gradients": 0.0,
        "optimizer state": MOMENTS * LAYERS * part,
    }
    gradients = {"backward": 1, "reduce-scatter": part - 1, "optimizer": -LAYERS * part}
    changes = list[tuple[float, str, float]]()
    for span in step:
        if change := gradients.get(span.kind):
            changes.append((span.end, "gradients", change))
        if stage == 3 and span.kind == "all-gather":
            changes.append((span.start, "parameters", 1))
        if stage == 3 and span.kind in ("forward", "backward"):
            changes.append((span.end, "parameters", -1))
    points = {0.0: dict(now)}
    for when, name, amount in sorted(changes):
        now[name] += amount
        points[when] = dict(now)
    points[end(step)] = now
    return [*points.items()]


def zero_step(stages: Iterable[int]) -> Figure:
    """A step on one of four ranks: lanes for compute and network, and what is held below them."""
    chosen, steps = list(stages), [spans(step_works(stage)) for stage in range(len(STAGES))]
    size = WIDE, 1.25 * len(chosen) + 0.6
    figure, grid = style.subplots(2 * len(chosen), 1, size=size, sharex=True)
    for number, stage in enumerate(chosen):
        lanes, memory = grid[2 * number : 2 * number + 2, 0]
        _lanes(lanes, steps[stage])
        _memory(memory, held_in(stage, steps[stage]))
        lanes.set_title(STAGES[stage], fontsize=style.TITLE, loc="left")
    grid[0, 0].set_xlim(0, max(map(end, steps)) + 1)
    grid[-1, 0].set_xlabel("time", fontsize=style.LABEL)
    legend = [Patch(label=part, linewidth=0.4, **part_look(part)) for part in PARTS]
    style.legend_below(figure, 3, legend)
    return figure


def _lanes(axes: Axes, step: list[Span]) -> None:
    for each in step:
        row, width, face = LANES.index(each.lane), each.end - each.start, (PHASE[each.kind], 0.5)
        box(axes, each.start, row, width, 0.9, each.text, face=face, linewidth=0.5)
        if each.kind == "optimizer":
            style.write(axes, each.end + 0.7, row + 0.47, "opt")
    style.name_rows(axes, LANES, 0.45)
    axes.set_xticks([])
    style.table(axes)


def _memory(axes: Axes, held: Held) -> None:
    when = [time for time, _ in held]
    bottom = [0.0] * len(when)
    for part in ("parameters", "optimizer state", "gradients"):
        top = [low + parts[part] for low, (_, parts) in zip(bottom, held, strict=True)]
        look = {"linewidth": 0.4, "alpha": 0.7, **part_look(part)}
        axes.fill_between(when, bottom, top, step="post", **look)
        bottom = top
    axes.set_ylim(0, (2 + MOMENTS) * LAYERS)
    axes.set_yticks([(2 + MOMENTS) * LAYERS / 2], ["memory"])
    style.table(axes)
