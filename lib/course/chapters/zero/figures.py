"""Pictures of ZeRO: who holds which part of the state, the flat layout, and a step."""

from collections.abc import Iterable, Mapping
from itertools import accumulate, product

import torch
from matplotlib.figure import Figure

from minidist.memory.state import DtypePolicy, share, state
from minidist.parallel.sharding.layouts import Flat
from minidist.plots import style
from minidist.plots.cells import Cell, cells, ending
from minidist.plots.curves import bands
from minidist.plots.style import PART, PHASE, RANK
from minidist.schedule.lanes import Span, Work, end, spans

WIDE = 3.7  # inches, of every picture here
PARTS = {"parameters": "weights", "gradients": "gradients", "optimizer state": "optimizer"}
BAR = 0.78  # share of a rank's column


def who_holds(policy: DtypePolicy, ranks: int, stages: Mapping[str, int]) -> Figure:
    """State with Adam, to scale: a panel for each strategy, a column for each rank.

    What a rank holds is filled: all of a part, or the slice with the rank's number; what it does
    not hold is an empty outline. `stages`: title → stage, as `share` takes it.
    """
    whole, rows = state(ranks, policy), -(-len(stages) // 2)  # a parameter for each rank
    sizes = [getattr(whole, part) for part in PARTS.values()]
    bottoms = [top - full for top, full in zip(accumulate(sizes), sizes, strict=True)]
    parts = [*zip(PARTS, sizes, bottoms, strict=True)]
    figure, grid = style.subplots(rows, 2, size=(WIDE, 1.9 * rows), sharey=True)
    for axes, (title, stage) in zip(grid.flat, stages.items(), strict=False):
        own = share(whole, ranks, stage)
        for rank, (name, full, bottom) in product(range(ranks), parts):
            held, left = getattr(own, PARTS[name]), rank - BAR / 2
            start = bottom + (full * rank / ranks if held < full else 0)
            axes.bar(left, held, BAR, start, align="edge", **style.part_look(name))
            style.box(axes, left, bottom, BAR, full, linewidth=0.6)
        axes.set_title(f"{title}: {own.total / ranks:g} bytes", fontsize=style.TITLE)
        style.table(axes)
        axes.set(xlim=(-0.5, ranks - 0.5), ylim=(0, whole.total), xticks=range(ranks))
        axes.set_xlabel("rank", fontsize=style.LABEL)
    middles = [bottom + full / 2 for _, full, bottom in parts]
    grid[0, 0].set_yticks(middles, [name.replace(" ", "\n") for name in PARTS])
    return figure


def flat_layout(sizes: Mapping[str, int], ranks: int) -> Figure:
    """Parameters of these sizes end to end in a padded buffer, and the ranks' shards of it."""
    names = [f"{name}[{i}]" for name, size in sizes.items() for i in range(size)]
    shard = Flat([torch.Size([size]) for size in sizes.values()], ranks, 0).shard_numel
    pads = ["pad"] * (ranks * shard - len(names))
    shards = [
        Cell(f"rank {rank}", (RANK[rank], 0.35), shard - 0.08, rank * shard + 0.04, edge=RANK[rank])
        for rank in range(ranks)
    ]
    figure, axes = style.single(size=(WIDE, 1.1))
    cells(axes, [map(Cell, names + pads), shards], ["buffer", "shards"], tall=0.76)
    return figure


LAYERS, RANKS = 3, 4
KIND = {"F": "forward", "B": "backward", "R": "reduce-scatter", "A": "all-gather"}
TAKES = {"F": 1, "B": 2, "R": 1, "A": 1}  # for a layer
UPDATE = 2  # for all layers
LANES = COMPUTE, NETWORK = "compute", "network"
STEPS = {  # what starts when: a message waits for the compute before it; "!" waits for the message
    "DDP": "F1 F2 F3  B3 R3 A3 B2 R2 A2 B1 R1 A1  !optimizer",
    "ZeRO-1": "F1 F2 F3  B3 B2 B1 R3 R2 R1  !optimizer A1 A2 A3",
    "ZeRO-2": "F1 F2 F3  B3 R3 B2 R2 B1 R1  !optimizer A1 A2 A3",
    "ZeRO-3": "A1 !F1 A2 !F2 A3 !F3  A3 !B3 R3 A2 !B2 R2 A1 !B1 R1  !optimizer",
}
MOMENTS = 2  # times a layer's weights
GATHERED = PART["parameters"], 0.35


def step_works(stage: int) -> list[Work]:
    """The plain form of each stage: a bucket for each layer, nothing gathered ahead."""
    works, last = list[Work](), dict[str, list[int]]()  # lane → the place of its last work
    for text in [*STEPS.values()][stage].split():
        name = text.removeprefix("!")
        lane = NETWORK if name[0] in "RA" else COMPUTE
        other = COMPUTE if lane == NETWORK else NETWORK
        after = last.get(other, []) if lane == NETWORK or "!" in text else []
        if name == "optimizer":
            works.append(Work(lane, name, UPDATE / RANKS if stage else UPDATE, after))
        else:
            works.append(Work(lane, KIND[name[0]], TAKES[name[0]], after, name))
        last[lane] = [len(works) - 1]
    return works


def held_in(stage: int, step: list[Span]) -> list[tuple[float, dict[str, float]]]:
    """(Time, what is held from then on) in layers' weights; a gather takes memory as it starts."""
    part = 1 / RANKS if stage else 1
    now: dict[str, float] = {
        "parameters": LAYERS * (part if stage == 3 else 1),
        "gradients": 0.0,
        "optimizer state": MOMENTS * LAYERS * part,
    }
    gradients = {"backward": 1, "reduce-scatter": part - 1, "optimizer": -LAYERS * part}
    weights = {"all-gather": 1, "forward": -1, "backward": -1} if stage == 3 else {}
    changes = list[tuple[float, str, float]]()
    for span in step:
        at = span.start if span.kind == "all-gather" else span.end
        changes.append((at, "gradients", gradients.get(span.kind, 0)))
        changes.append((at, "parameters", weights.get(span.kind, 0)))
    points = {0.0: dict(now)}
    for when, name, amount in sorted(changes):
        now[name] += amount
        points[when] = dict(now)
    points[end(step)] = now
    return [*points.items()]


def gathered(step: list[Span]) -> list[Cell]:
    """Layers whose gathered weights are in memory: from the gather until they have computed."""
    begins, found = dict[str, float](), list[Cell]()
    for span in sorted(step, key=lambda each: each.start):
        number = span.text[1:]
        if span.kind == "all-gather":
            begins[number] = span.start
        elif number in begins:
            start = begins.pop(number)
            found.append(Cell(number, GATHERED, span.end - start, start))
    return found


def zero_step(stages: Iterable[int]) -> Figure:
    """A step on one of four ranks: lanes for compute and network, and what is held below them.

    Of stage 3 a lane more names the layers that are gathered.
    """
    chosen, steps = list(stages), [spans(step_works(stage)) for stage in range(len(STEPS))]
    tall = [height for stage in chosen for height in (3 if stage == 3 else 2, 1.7)]
    size = WIDE, 0.32 * sum(tall) + 0.8
    figure, grid = style.subplots(len(tall), 1, size=size, sharex=True, height_ratios=tall)
    for stage, lanes, memory in zip(chosen, grid[::2, 0], grid[1::2, 0], strict=True):
        rows = {name: list[Cell]() for name in LANES}
        for each in steps[stage]:
            face = PHASE[each.kind], 0.5
            rows[each.lane].append(Cell(each.text, face, each.end - each.start, each.start))
            if each.kind == "optimizer":
                rows[each.lane].append(ending("opt"))
        if stage == 3:
            rows["gathered"] = gathered(steps[stage])
        cells(lanes, rows, tall=0.9, title=[*STEPS][stage])
        when, held = zip(*held_in(stage, steps[stage]), strict=True)
        parts = "parameters", "optimizer state", "gradients"
        bands(memory, when, {part: [at[part] for at in held] for part in parts}, step="post")
        style.table(memory)
        memory.set_ylim(0, (2 + MOMENTS) * LAYERS)
        memory.set_yticks([(2 + MOMENTS) * LAYERS / 2], ["memory"])
    grid[0, 0].set_xlim(0, max(map(end, steps)) + 1)
    grid[-1, 0].set_xlabel("time", fontsize=style.LABEL)
    style.legend_below(figure, 3, {part: style.part_look(part) for part in PARTS})
    return figure
