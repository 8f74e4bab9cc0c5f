"""My model, my GPUs: what do I run, how large a batch, how fast? Arithmetic in closed form.

`Sizes` says what the model is, `Accelerator` what it runs on, and `TrainingStep` has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from textwrap import fill

from torch import Tensor, nn

from minidist.memory.state import AUTOCAST, DtypePolicy, Strategy, state
from minidist.planner.hardware import ACCELERATORS, Accelerator
from minidist.planner.measured import AllReduceTimes
from minidist.planner.sizes import Sizes, above_zero, check_sizes
from minidist.planner.split import Split, check_split
from minidist.planner.step import Memory, Phases, TrainingStep, into_nodes, total, with_overlap
from minidist.schedule.checks import amount, whole_number

WIDTH = 80  # of a printed line
CLOSE = 0.95  # of the fastest strategy's rate: then the simpler one is taken
ROOM = 0.9  # of a GPU's memory: what fragments, and CUDA and NCCL themselves, need the rest


@dataclass(frozen=True)
class Forecast:
    """What a rank would hold, send and take in a step under one strategy."""

    memory: dict[str, float]  #: bytes by part; they are never there all at once
    peak: float  #: the most bytes at a time
    fits: bool  #: whether that is no more than `ROOM` of what the hardware has
    largest_batch: int  #: samples of a micro-batch that would fit, 0 if not even one does
    sent: float  #: bytes that a rank sends
    messages: int  #: in which it sends them
    compute: float  #: seconds of forward and backward at the rate that training reaches
    memory_traffic: float  #: seconds of reading weights, and writing gradients and new weights
    communication: float  #: seconds
    bubble: float  #: seconds of waiting for other stages of a pipeline
    sequential: float  #: seconds of a step if nothing overlaps
    overlapped: float  #: seconds of a step if communication overlaps as the strategy has it
    tokens_per_second: float  #: of all ranks, from `overlapped`

    @property
    def binds(self) -> str:
        """The resource that a step needs longest."""
        seconds = {
            "compute": self.compute,
            "memory bandwidth": self.memory_traffic,
            "network": self.communication,
        }
        return max(seconds, key=seconds.__getitem__)


@dataclass(frozen=True)
class Plan:
    """A forecast for each strategy, the one to take, and why."""

    hardware: Accelerator  #: of each rank
    ranks: int
    batch: int  #: samples of a rank's micro-batch
    forecasts: dict[str, Forecast]  #: by strategy, named as in `minidist.train`
    best: str | None  #: the strategy to take, None if nothing fits
    reasons: tuple[str, ...]  #: sentences

    def __str__(self) -> str:
        lines = [
            f"{'':7}{'peak':>10}{'fits':>6}{'batch':>7}{'sent':>11}{'step':>10}{'tokens/s':>12}"
            "  binds"
        ]
        for name, each in self.forecasts.items():
            lines.append(
                f"{name:7}{_bytes(each.peak):>10}{'yes' if each.fits else 'no':>6}"
                f"{each.largest_batch:>7,}{_bytes(each.sent):>11}{_seconds(each.overlapped):>10}"
                f"{each.tokens_per_second:>12,.0f}  {each.binds}"
            )
        return "\n".join([*lines, *(fill(each, WIDTH) for each in self.reasons)])


def plan(
    model: nn.Module | Sizes,
    hardware: Accelerator | str,
    ranks: int,
    *,
    batch: int = 1,
    sample: Tensor | None = None,
    policy: DtypePolicy = AUTOCAST,
    optimizer: str = "adam",
    checkpointing: float = False,
    bucket_cap_mb: float = 25,
    gradient_as_bucket_view: bool = False,
    foreach: bool = True,
    fused_loss: bool = False,
    all_reduce: AllReduceTimes | None = None,
    tensor: int = 1,
    pipeline: int = 1,
    micro_batches: int = 1,
    interleaved: int = 1,
) -> Plan:
    """Predict a training step under every strategy, and recommend one.

    A model may be split first, by width and by depth; then the strategies are of the replicas, each
    of `tensor * pipeline` ranks. Those that gather weights in forward would do so for each
    micro-batch again, and are left out of a pipeline.

    Args:
        model: its sizes, or the bare module; that may be on the meta device.
        hardware: of each rank, or the name of one in `ACCELERATORS`. Ranks fill nodes.
        batch: samples of a rank's micro-batch.
        sample: an input of the module, as `Sizes.of` takes it.
        policy: of dtypes. Gradients travel in theirs, and so do weights; FSDP gathers weights in
            the dtype in which they compute.
        optimizer: "sgd", "momentum" or "adam".
        checkpointing: the share of blocks that keep only their inputs, and compute forward twice:
            False, True, or 0.5 for every second one.
        bucket_cap_mb: MiB that close a bucket of DDP or ZeRO, as there.
        gradient_as_bucket_view: as in DDP.
        foreach: as in AdamW, whose default it is on a GPU.
        fused_loss: whether one kernel takes logits to their loss and makes their gradients.
        all_reduce: as measured; it counts where all of its `ranks` talk, instead of the links.
        tensor: ranks that split each layer. They fill nodes first.
        pipeline: ranks that split the blocks.
        micro_batches: of a replica in a step, each of `batch` samples.
        interleaved: stages of each rank of a pipeline.

    Raises ValueError or TypeError that names the argument.
    """
    whole_number("ranks", ranks, 1)
    whole_number("batch", batch, 1)
    if not isinstance(policy, DtypePolicy):
        raise ValueError(f"policy: expected a DtypePolicy, such as MIXED, got {policy!r}")
    state(1, policy, optimizer)  # raises if the optimizer is unknown
    gpu = _accelerator(hardware)
    if isinstance(model, nn.Module):
        if sample is None:
            raise ValueError("sample: expected an input of the module, got None")
        model = Sizes.of(model, sample)
    elif not isinstance(model, Sizes):
        raise ValueError(f"model: expected an nn.Module or Sizes, got {type(model).__name__}")
    check_sizes(model)
    above_zero("bucket_cap_mb", bucket_cap_mb)
    if amount("checkpointing", checkpointing + 0) > 1:  # True + 0 is 1
        raise ValueError(f"checkpointing: expected a share from 0 to 1, got {checkpointing!r}")
    split = Split(tensor, pipeline, micro_batches, interleaved)
    check_split(split, model, ranks)
    beside = max(1, gpu.per_node // tensor)  # replicas in a node
    local, nodes = into_nodes(ranks // split.ranks, beside)
    step = TrainingStep(
        split.part(model), gpu, local, nodes, batch * micro_batches, policy, optimizer,
        float(checkpointing), bucket_cap_mb, gradient_as_bucket_view, foreach, fused_loss,
        all_reduce, split,
    )  # fmt: skip
    hybrid = step.nodes > 1 and step.local == beside > 1
    strategies = [
        each
        for each in Strategy
        if (each != Strategy.HSDP or hybrid) and (each.stage < 3 or pipeline == 1)
    ]
    forecasts = {each.value: forecast(step, each) for each in strategies}
    forecasts["single"] = forecast(replace(step, local=1, nodes=1), Strategy.SINGLE)
    best = _best(forecasts)
    return Plan(gpu, ranks, batch, forecasts, best, _reasons(forecasts, best, step))


def _accelerator(hardware: Accelerator | str) -> Accelerator:
    """The hardware of that name, or this one if its rates are sound."""
    gpu = ACCELERATORS.get(hardware) if isinstance(hardware, str) else hardware
    if not isinstance(gpu, Accelerator):
        known = ", ".join(ACCELERATORS)
        raise ValueError(f"hardware: expected an Accelerator or one of {known}, got {hardware!r}")
    for name in ("flops", "memory", "bandwidth", "nvlink", "network", "utilization"):
        above_zero(f"hardware.{name}", getattr(gpu, name))
    if gpu.utilization > 1:
        raise ValueError(f"hardware.utilization: expected at most 1, got {gpu.utilization}")
    whole_number("hardware.per_node", gpu.per_node, 1)
    amount("hardware.half_width", gpu.half_width)
    amount("hardware.nvlink_latency", gpu.nvlink_latency)
    amount("hardware.network_latency", gpu.network_latency)
    return gpu


# ---- the formulas together ----


def forecast(step: TrainingStep, strategy: Strategy) -> Forecast:
    """What the step takes under a strategy."""
    memory, costs = step.memory(strategy), step.traffic(strategy)
    computes, moves = step.operations(), step.memory_traffic(strategy)
    within, micro_batches = step.tensor_parallel(), step.split.micro_batches
    sent = total((*costs, within, step.borders()))
    alone = Phases(*map(max, computes, moves))  # a GPU computes while it reads and writes
    pieces = step.pieces(strategy)
    overlapped = (
        with_overlap(alone.forward, costs[0].seconds, pieces)
        + with_overlap(alone.backward, costs[1].seconds, pieces)
        + alone.update
        + costs[2].seconds
        + within.seconds
    )
    bubble = step.split.bubble * (alone.forward + alone.backward + within.seconds)
    limit = ROOM * step.gpu.memory
    free, one = limit - memory.always, memory.activations / (step.batch / micro_batches)
    parts = {name: nbytes for name, nbytes in memory._asdict().items() if name != "at_begin"}
    return Forecast(
        memory=parts,
        peak=memory.peak,
        fits=memory.peak <= limit,
        largest_batch=max(0, int((free - memory.at_begin) / one)) if memory.ends <= free else 0,
        sent=sent.sent,
        messages=sent.messages,
        compute=sum(computes),
        memory_traffic=sum(moves),
        communication=sent.seconds,
        bubble=bubble,
        sequential=sum(alone) + sent.seconds + bubble,
        overlapped=overlapped + bubble,
        tokens_per_second=step.ranks * step.batch * step.sizes.tokens / (overlapped + bubble),
    )


# ---- what to run ----


def _best(forecasts: dict[str, Forecast]) -> str | None:
    """The simplest strategy that fits and is close to the fastest of those."""
    rates = {name: each.tokens_per_second for name, each in forecasts.items() if each.fits}
    enough = CLOSE * max(rates.values(), default=0.0)
    return next((name for name, rate in rates.items() if rate >= enough), None)


def _reasons(
    forecasts: dict[str, Forecast], best: str | None, step: TrainingStep
) -> tuple[str, ...]:
    """Sentences that say why, with numbers."""
    limit, name = ROOM * step.gpu.memory, step.gpu.name
    room = f"the {_bytes(limit)} that it may take, {ROOM:.0%} of each {name}"
    if best is None:
        least = min(forecasts, key=lambda each: forecasts[each].peak)
        peak = forecasts[least].peak
        return (
            f"Nothing fits: {least} needs least, {_bytes(peak)}, which is {_bytes(peak - limit)} "
            f"more than {room}.",
            *_what_would_help(step),
        )
    found, names = forecasts[best], list(forecasts)
    reasons = []
    if big := [each for each in names if not forecasts[each].fits]:
        needs = ", ".join(f"{each} {_bytes(forecasts[each].peak)}" for each in big)
        reasons.append(f"Too large for {room}: {needs}.")
    slow = [each for each in names[: names.index(best)] if forecasts[each].fits]
    for each in slow:
        rate = found.tokens_per_second / forecasts[each].tokens_per_second
        reasons.append(f"{each} fits, but {best} is {rate:.2f} times as fast.")
    reasons.append(
        f"{best}: the simplest that fits and is within {1 - CLOSE:.0%} of the fastest, with "
        f"{found.tokens_per_second:,.0f} tokens/s and {_bytes(found.peak)} of {_bytes(limit)}; "
        f"a micro-batch of up to {found.largest_batch:,} fits."
    )
    reasons.append(
        f"What binds is {found.binds}: a step computes for {_seconds(found.compute)}, moves memory "
        f"for {_seconds(found.memory_traffic)} and communicates for "
        f"{_seconds(found.communication)}; with overlap"
        + f" and a bubble of {_seconds(found.bubble)}" * (found.bubble > 0)
        + f" it takes {_seconds(found.overlapped)}."
    )
    return tuple(reasons)


def _what_would_help(step: TrainingStep) -> list[str]:
    """With what full sharding would fit; if with nothing, what to split besides."""
    if step.split.ranks > 1:
        return ["Split it further, by `tensor` or `pipeline`, or checkpoint more blocks."]
    alone = replace(step, batch=1)
    again = replace(alone, checkpointing=1.0)
    found: list[str] = []
    for how, each in (
        ("", step),
        (" with a micro-batch of 1", alone),
        (" with a micro-batch of 1 and checkpointing", again),
    ):
        times = _times(each.memory(Strategy.FSDP), ROOM * step.gpu.memory)
        if times <= 1:
            return [*found, f"fsdp fits on these ranks{how}."]
        if math.isfinite(times):
            found.append(f"fsdp fits on {math.ceil(times * step.ranks):,} ranks{how}.")
    if found:
        return found
    memory = again.memory(Strategy.FSDP)
    need = max(memory.at_begin + memory.activations, memory.unsharded)
    return [
        f"More ranks do not help: one block unsharded and the activations of one sample, with "
        f"checkpointing, take {_bytes(need)}, and data parallelism shards neither. Tensor "
        "parallelism splits both, and pipeline parallelism the depth."
    ]


def _times(memory: Memory, limit: float) -> float:
    """How many times as many ranks must share the state for it to fit; infinity if none do."""
    begin, end = limit - memory.at_begin - memory.activations, limit - memory.unsharded
    if begin <= 0 or end <= 0:
        return math.inf
    held = memory.always + memory.gradients
    return max(memory.always / begin, held / end, (held + memory.update) / limit)


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB" if number < 1000 else f"{number:,.0f} TB"


def _seconds(number: float) -> str:
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if number >= least:
            return f"{number / least:.3g} {unit}"
    return f"{number * 1e6:.3g} µs"
