"""My model, these GPUs, this batch: among all grids, which, and why not another?

The grids and their prices are `minidist.formulas.grids`; this says in sentences what it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import fill, wrap
from typing import Any

from torch import Tensor, nn

from minidist.formulas import grids
from minidist.formulas.compute import mfu
from minidist.formulas.inputs import ORDERS, Gpu, Grid, Question
from minidist.formulas.reasons import binds, placed
from minidist.formulas.step import forecast
from minidist.memory.state import AUTOCAST, DtypePolicy
from minidist.planner.hardware import ACCELERATORS, Accelerator, faster
from minidist.planner.planner import (
    ROOM,
    WIDTH,
    Forecast,
    accelerator,
    each_of,
    in_bytes,
    in_seconds,
    sizes_of,
    taken,
)
from minidist.planner.sizes import Sizes
from minidist.schedule.checks import whole_number

KEEP = 5
SEEN = 0.005  # of a step, the least share that is named
DEGREES = ("data", "tensor", "pipeline", "context", "expert")
NAMES = {
    "compute": "compute", "recomputation": "recomputation", "tensor": "tensor parallelism",
    "context": "context parallelism", "expert": "all-to-alls to experts", "bubble": "the bubble",
    "borders": "waiting at the pipeline's borders", "data": "exchanges between replicas",
    "update": "the optimizer's update",
}  # fmt: skip
BOUGHT: dict[str, Callable[[Gpu], Gpu]] = {
    "twice the compute": lambda gpu: gpu._replace(flops=2 * gpu.flops),
    "twice the network": lambda gpu: gpu._replace(network=2 * gpu.network),
    "twice the NVLink": lambda gpu: gpu._replace(nvlink=2 * gpu.nvlink),
    "twice the memory": lambda gpu: gpu._replace(memory=2 * gpu.memory),
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A grid, and what a step takes in it."""

    grid: Grid
    forecast: Forecast
    spent: dict[str, float]  #: seconds of a step, by what they go to
    mfu: float  #: as others publish it: see `formulas.compute.mfu`
    bound: dict[str, Any]  #: by what: see `formulas.reasons.binds`

    @property
    def seconds(self) -> float:
        return self.forecast.overlapped

    @property
    def binds(self) -> str:
        """Compute's share of a step, and what else keeps it from being shorter."""
        compute = f"compute {self.spent['compute'] / self.seconds:.0%}"
        if self.bound["needs"]:
            needs = in_bytes(self.bound["needs"])
            return f"{compute}; memory: would need {needs} with {self.bound['how']}"
        share = self.spent[self.bound["part"]] / self.seconds
        return f"{compute}, {NAMES[self.bound['part']]} {share:.0%}" if share > SEEN else compute

    def __str__(self) -> str:
        grid, parts = self.grid, [self.grid.strategy]
        parts += [f"{name} {getattr(grid, name)}" for name in DEGREES if getattr(grid, name) > 1]
        if grid.pipeline > 1:
            stages = f" with {grid.interleaved} stages per rank" if grid.interleaved > 1 else ""
            near = " inside nodes" if grid.nearer == "pipeline" else ""
            parts.append(grid.order.replace("_", " ").replace("1f1b", "1F1B") + near + stages)
        parts.append(f"micro-batch {grid.batch}")
        parts.append(f"recompute {grid.recompute}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Search:
    """The fastest grids that fit, the best of each way to split the model, and why."""

    hardware: Accelerator  #: of each rank
    ranks: int
    samples: int  #: of a step, of all ranks
    best: tuple[Found, ...]  #: the fastest first; empty if nothing fits
    reasons: tuple[str, ...]  #: sentences
    tried: int  #: grids that there are, strategies not counted
    priced: int  #: of these, with their strategies, those whose step was priced

    def __repr__(self) -> str:
        lines = [f"{'':3}{'step':>8}{'MFU':>5}{'peak':>9}  grid, and what binds it"]
        for place, each in enumerate(self.best):
            peak = in_bytes(each.forecast.peak)
            head = f"{place + 1:<3}{in_seconds(each.seconds):>8}{each.mfu:>5.0%}{peak:>9}  "
            indent = " " * len(head)
            lines += wrap(f"{head}{each}", WIDTH, subsequent_indent=indent)
            lines += wrap(f"{indent}> {each.binds}", WIDTH, subsequent_indent=f"{indent}  ")
        lines = lines if self.best else []
        return "\n".join([*lines, *(fill(each, WIDTH) for each in self.reasons)])

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it: numbers, texts, lists and dicts."""
        return {
            "hardware": self.hardware.name,
            "ranks": self.ranks,
            "samples": self.samples,
            "best": [
                {
                    "grid": each.grid._asdict(),
                    "seconds": each.seconds,
                    "tokens_per_second": each.forecast.tokens_per_second,
                    "mfu": each.mfu,
                    "peak": each.forecast.peak,
                    "spent": each.spent,
                    "binds": each.binds,
                }
                for each in self.best
            ],
            "reasons": self.reasons,
            "tried": self.tried,
            "priced": self.priced,
        }


def search(
    model: nn.Module | Sizes,
    hardware: Accelerator | str,
    ranks: int,
    samples: int,
    *,
    sample: Tensor | None = None,
    policy: DtypePolicy = AUTOCAST,
    precision: str = "bf16",
    optimizer: str = "adam",
    fused_loss: bool = False,
    orders: tuple[str, ...] = ORDERS,
    context: int = 64,
) -> Search:
    """Find the fastest grids for a step of so many samples on so many ranks.

    It tries all degrees of data, tensor, pipeline, context and expert parallelism that divide
    ranks, samples and the model; all micro-batches, orders and strategies; and recomputes nothing,
    all but matrices and attention, or all. See [Note: grids] in `minidist.formulas.grids`.

    Args:
        model: its sizes, or the bare module, as `plan` takes it.
        hardware: of each rank, or the name of one in `ACCELERATORS`.
        ranks: GPUs.
        samples: of a step, of all ranks together.
        sample: an input of the module.
        policy: of dtypes, as in `plan`.
        precision: "bf16", "fp8" or "mxfp8", as in `plan`.
        optimizer: "sgd", "momentum", "adam" or "muon", as in `plan`.
        fused_loss: whether one kernel takes logits to their loss and makes their gradients.
        orders: that a pipeline may have, of "1f1b", "zero_bubble" and "dualpipe".
        context: the most ranks that may split a sequence.

    Raises ValueError or TypeError that names the argument.
    """
    whole_number("context", context, 1)
    if not orders or not {*orders} <= {*ORDERS}:
        raise ValueError(f"orders: expected some of {', '.join(ORDERS)}, got {orders!r}")
    question = asked(model, hardware, ranks, samples, sample)
    question = question._replace(
        each=each_of(question.sizes, policy, optimizer), fused_loss=fused_loss, orders=orders,
        contexts=context, faster=faster(question.gpu, precision), muon=optimizer == "muon",
    )  # fmt: skip
    told = grids.search(question, KEEP)
    best = tuple(priced(question, each["grid"]) for each in told["best"])
    why = _reasons(question, best) if best else _nothing_fits(question, told["least"])
    return Search(accelerator(hardware), ranks, samples, best, why, told["tried"], told["priced"])


def asked(
    model: nn.Module | Sizes,
    hardware: Accelerator | str,
    ranks: int,
    samples: int,
    sample: Tensor | None = None,
) -> Question:
    """The question that `search` answers by default: bf16 autocast, AdamW, all orders."""
    whole_number("ranks", ranks, 1)
    whole_number("samples", samples, 1)
    gpu, sizes = accelerator(hardware), sizes_of(model, sample)
    each = each_of(sizes, AUTOCAST, "adam")
    return Question(sizes, gpu, each, ranks, samples, ROOM * gpu.memory)


def priced(question: Question, grid: Grid) -> Found:
    """What a step takes in a grid, whether it fits or not."""
    step = grids.step_of(question, grid)
    told = forecast(step, grid.strategy)
    needed = mfu(step, told["overlapped"] / step.accumulated)
    spent = grids.spent(step, grid.strategy, told)
    return Found(grid, Forecast(**told), spent, needed, binds(question, grid, spent))


# ---- why ----


def _reasons(question: Question, best: tuple[Found, ...]) -> tuple[str, ...]:
    first, gpu = best[0], question.gpu
    longest = sorted(first.spent, key=lambda name: -first.spent[name])[:4]
    goes = ", ".join(
        f"{NAMES[name]} {first.spent[name] / first.seconds:.0%}"
        for name in longest
        if first.spent[name] > SEEN * first.seconds
    )
    reasons = [f"Of a step of {in_seconds(first.seconds)}, these take most: {goes}."]
    if question.ranks > 1:
        reasons.append(placed(first.grid, gpu.per_node))
    if len(best) > 1:
        reasons.append(_lost(first, best[1]))
    reasons.append(_bought(question, first))
    return (*reasons, *taken(gpu, question.faster))


def _lost(first: Found, second: Found) -> str:
    """Why the runner-up is not the first."""
    more = {name: second.spent[name] - first.spent[name] for name in first.spent}
    worst, saves = max(more, key=more.__getitem__), min(more, key=more.__getitem__)
    text = (
        f"The second takes {in_seconds(second.seconds - first.seconds)} longer: it loses "
        f"{in_seconds(more[worst])} to {NAMES[worst]}"
    )
    if more[saves] < 0:
        text += f", and saves {in_seconds(-more[saves])} in {NAMES[saves]}"
    return f"{text}."


def _bought(question: Question, first: Found) -> str:
    """What twice of each resource would gain, in the best grid that there is then."""
    gains = []
    for what, changed in BOUGHT.items():
        richer = changed(question.gpu)
        again = question._replace(gpu=richer, limit=ROOM * richer.memory)
        takes = grids.search(again, 1)["best"][0]["forecast"]["overlapped"]
        gains.append(f"{what} {first.seconds / takes - 1:.0%}")
    return f"A step would be faster with {', '.join(gains)}."


def _nothing_fits(question: Question, least: dict[str, Any] | None) -> tuple[str, ...]:
    """By how much nothing fits, and what would."""
    if least is None:
        return (
            f"No grid has {question.ranks:,} ranks and {question.samples:,} samples: each replica "
            "takes as many as any other, and at least one.",
        )
    over = in_bytes(least["peak"] - question.limit)
    room = f"{ROOM:.0%} of each {question.gpu.name}, {in_bytes(question.limit)}"
    reasons = [
        f"Nothing fits: {_text(least['grid'])} needs least, {in_bytes(least['peak'])}, which is "
        f"{over} more than {room}."
    ]
    if ranks := grids.enough(question):
        reasons.append(f"It would fit on {ranks:,} of them.")
    larger = [
        gpu.name
        for gpu in ACCELERATORS.values()
        if gpu.memory > question.gpu.memory
        and grids.search(question._replace(gpu=gpu, limit=ROOM * gpu.memory), 1)["best"]
    ]
    if larger:
        reasons.append(f"On as many GPUs it would fit with {' or '.join(larger)}.")
    return tuple(reasons)


def _text(grid: Grid) -> str:
    """The grid as `Found` writes it."""
    return str(Found(grid, None, {}, 0.0, {}))  # type: ignore[arg-type]


def frontier(
    model: nn.Module | Sizes, hardware: Accelerator | str, ranks: int, samples: int, most: int = 24
) -> list[tuple[float, Found]]:
    """The fastest grid for each limit of memory, (bytes, grid), the least that fits first.

    From all that the hardware has down, each limit just below what the last grid needs, `most`
    times at most. The arguments are those of `search`.
    """
    question = asked(model, hardware, ranks, samples)
    limit, found = question.limit, list[tuple[float, Found]]()
    while len(found) < most:
        told = grids.search(question._replace(limit=limit), 1)["best"]
        if not told:
            break
        found.append((limit, priced(question, told[0]["grid"])))
        limit = 0.999 * told[0]["forecast"]["peak"]
    return found[::-1]
