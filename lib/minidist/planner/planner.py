"""My model, my GPUs: what do I run, how large a batch, how fast? Arithmetic in closed form.

`Sizes` says what the model is, `Accelerator` what it runs on; the prices are `minidist.formulas`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from textwrap import fill

from torch import Tensor, nn

from minidist.formulas import links, nccl
from minidist.formulas import step as formulas
from minidist.formulas.inputs import Each, Gpu, TrainingStep
from minidist.formulas.memory import memory
from minidist.memory.state import AUTOCAST, OPTIMIZERS, DtypePolicy, bytes_each
from minidist.planner.hardware import ACCELERATORS, ASSUMED, Accelerator, faster
from minidist.planner.measured import AllReduceTimes
from minidist.planner.sizes import Sizes, above_zero, check_sizes
from minidist.planner.split import Split, check_split
from minidist.schedule.checks import amount, whole_number

WIDTH = 80  # characters in a printed line
CLOSE = 0.95  # share of the fastest rate at which a simpler strategy is preferred
ROOM = 0.9  # share of a GPU's memory; fragments, and CUDA and NCCL themselves, need the rest


@dataclass(frozen=True)
class Forecast:
    """A rank's memory, traffic and time in a step under one strategy."""

    memory: dict[str, float]  #: bytes by part, as `formulas.memory` has them
    peak: float  #: the most bytes at a time
    fits: bool  #: whether that is no more than `ROOM` of what the hardware has
    largest_batch: int  #: samples of a micro-batch that would fit, 0 if not even one does
    sent: float  #: bytes that a rank sends
    messages: int  #: in which it sends them, if rings do
    compute: float  #: seconds of forward and backward at the rate that training reaches
    memory_traffic: float  #: seconds of reading weights, and writing gradients and new weights
    communication: float  #: seconds, one collective after the other
    bubble: float  #: seconds of waiting for other stages of a pipeline
    sequential: float  #: seconds of a step if nothing overlaps
    overlapped: float  #: seconds of a step if communication overlaps as the strategy has it
    exposed: float  #: seconds of communication that nothing hides
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
            f"{'':9}{'peak':>9}{'fits':>6}{'batch':>7}{'sent':>10}{'step':>10}{'tokens/s':>12}"
            "  binds"
        ]
        for name, each in self.forecasts.items():
            lines.append(
                f"{name:9}{in_bytes(each.peak):>9}{'yes' if each.fits else 'no':>6}"
                f"{each.largest_batch:>7,}{in_bytes(each.sent):>10}{in_seconds(each.overlapped):>10}"
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
    precision: str = "bf16",
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
        precision: in which the blocks' matrices are multiplied: "bf16", "fp8" or "mxfp8". The
            latter are faster, as `planner.hardware.FASTER` has it. All else is as in bf16, memory
            and what is sent, too: as torchao has it, which casts for each product.
        optimizer: "sgd", "momentum", "adam"; or "muon" for the blocks' matrices, beside AdamW.
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
    gpu = accelerator(hardware)
    model = sizes_of(model, sample)
    each = each_of(model, policy, optimizer, foreach)
    above_zero("bucket_cap_mb", bucket_cap_mb)
    if amount("checkpointing", checkpointing + 0) > 1:  # True + 0 is 1
        raise ValueError(f"checkpointing: expected a share from 0 to 1, got {checkpointing!r}")
    split = Split(tensor, pipeline, micro_batches, interleaved)
    check_split(split, model, ranks)
    step = TrainingStep(
        split.part(model), gpu, each, *links.into_nodes(ranks, gpu, tensor, pipeline),
        batch * micro_batches, float(checkpointing),
        bucket_cap_mb, gradient_as_bucket_view, fused_loss,
        all_reduce.points if all_reduce and all_reduce.ranks == ranks // split.ranks else (),
        *split, ROOM * gpu.memory, faster=faster(gpu, precision), muon=optimizer == "muon",
    )  # fmt: skip
    estimates = {name: formulas.forecast(step, name) for name in formulas.names_of(step)}
    best = formulas.recommended(estimates, pipeline, CLOSE)
    forecasts = {name: Forecast(**each) for name, each in estimates.items()}
    return Plan(gpu, ranks, batch, forecasts, best or None, _reasons(forecasts, best, step))


def sizes_of(model: nn.Module | Sizes, sample: Tensor | None) -> Sizes:
    """The sizes, or those of the module."""
    if isinstance(model, nn.Module):
        if sample is None:
            raise ValueError("sample: expected an input of the module, got None")
        model = Sizes.of(model, sample)
    elif not isinstance(model, Sizes):
        raise ValueError(f"model: expected an nn.Module or Sizes, got {type(model).__name__}")
    check_sizes(model)
    return model


def each_of(sizes: Sizes, policy: DtypePolicy, optimizer: str, foreach: bool = True) -> Each:
    """Bytes of a parameter; with Muon on average, which keeps one moment of a block's matrices."""
    if not isinstance(policy, DtypePolicy):
        raise ValueError(f"policy: expected a DtypePolicy, such as MIXED, got {policy!r}")
    if optimizer not in (*OPTIMIZERS, "muon"):
        known = ", ".join((*OPTIMIZERS, "muon"))
        raise ValueError(f"optimizer: expected one of {known}, got {optimizer!r}")
    if optimizer != "muon":
        return bytes_each(policy, optimizer, foreach)
    if not sizes.matrices:
        raise ValueError("optimizer: expected none that needs matrices that `model` lacks: 'muon'")
    adam = bytes_each(policy, "adam", foreach)
    elements = sizes.units * sum(rows * columns * count for rows, columns, count in sizes.matrices)
    rest = 1 - elements / sizes.parameters
    return adam._replace(moments=adam.moments * (1 + rest) / 2, update=adam.update * rest)


def accelerator(hardware: Accelerator | str) -> Accelerator:
    """The hardware of that name, or this one if its rates are sound."""
    gpu = ACCELERATORS.get(hardware) if isinstance(hardware, str) else hardware
    if not isinstance(gpu, Accelerator):
        known = ", ".join(ACCELERATORS)
        raise ValueError(f"hardware: expected an Accelerator or one of {known}, got {hardware!r}")
    for name in ("flops", "memory", "bandwidth", "nvlink", "network", "utilization", "attention"):
        above_zero(f"hardware.{name}", getattr(gpu, name))
    for name, share in (("utilization", gpu.utilization), ("attention", gpu.attention)):
        if share > 1:
            raise ValueError(f"hardware.{name}: expected at most 1, got {share}")
    whole_number("hardware.per_node", gpu.per_node, 1)
    for name in ("half_width", "nvlink_latency", "network_latency"):
        amount(f"hardware.{name}", getattr(gpu, name))
    if gpu.generation and gpu.generation not in nccl.LL_LIMIT_IN_NODE:
        known = ", ".join(nccl.LL_LIMIT_IN_NODE)
        raise ValueError(f"hardware.generation: expected one of {known}, got {gpu.generation!r}")
    return gpu


# ---- what to run ----


def _reasons(forecasts: dict[str, Forecast], best: str, step: TrainingStep) -> tuple[str, ...]:
    """Sentences that say why, with numbers."""
    limit, name = step.limit, step.gpu.name
    room = f"the {in_bytes(limit)} that it may take, {ROOM:.0%} of each {name}"
    if not best:
        least = min(forecasts, key=lambda each: forecasts[each].peak)
        peak = forecasts[least].peak
        return (
            f"Nothing fits: {least} needs least, {in_bytes(peak)}, which is "
            f"{in_bytes(peak - limit)} more than {room}.",
            *_what_would_help(step),
        )
    pick, names = forecasts[best], list(forecasts)
    reasons = []
    if big := [each for each in names if not forecasts[each].fits]:
        needs = ", ".join(f"{each} {in_bytes(forecasts[each].peak)}" for each in big)
        reasons.append(f"Too large for {room}: {needs}.")
    rungs = [each for each in formulas.rungs(step.pipeline) if each in names]
    slow = [each for each in rungs[: rungs.index(best)] if forecasts[each].fits]
    for each in slow:
        rate = forecasts[each].tokens_per_second / pick.tokens_per_second
        reasons.append(f"{each} fits, but reaches only {rate:.0%} of the speed of {best}.")
    reasons.append(
        f"{best}: the simplest that fits and is within {1 - CLOSE:.0%} of the fastest, with "
        f"{pick.tokens_per_second:,.0f} tokens/s and {in_bytes(pick.peak)} of {in_bytes(limit)}; "
        f"a micro-batch of up to {pick.largest_batch:,} fits."
    )
    reasons.append(
        f"What binds is {pick.binds}: a step computes for {in_seconds(pick.compute)}, moves memory "
        f"for {in_seconds(pick.memory_traffic)} and communicates for "
        f"{in_seconds(pick.communication)}; with overlap"
        + f" and a bubble of {in_seconds(pick.bubble)}" * (pick.bubble > 0)
        + f" it takes {in_seconds(pick.overlapped)}."
    )
    return (*reasons, *taken(step.gpu, step.faster))


def taken(gpu: Gpu, times: float) -> list[str]:
    """Sentences on what a price takes for granted: of a GPU's rate, and of eight bits."""
    found = []
    if gpu.name in ASSUMED:
        found.append(f"The rate at which a {gpu.name} computes is assumed: no run was at hand.")
    if times > 1:
        found.append(
            f"The blocks' matrices are taken to be {times:g} times as fast as in bf16, casts "
            "included; all else, and all memory, is as in bf16."
        )
    return found


def _what_would_help(step: TrainingStep) -> list[str]:
    """With what full sharding would fit; if with nothing, what to split besides."""
    if step.tensor * step.pipeline > 1:
        return ["Split it further, by `tensor` or `pipeline`, or checkpoint more blocks."]
    alone = replace(step, batch=1)
    again = replace(alone, checkpointing=1.0)
    advice: list[str] = []
    for how, each in (
        ("", step),
        (" with a micro-batch of 1", alone),
        (" with a micro-batch of 1 and checkpointing", again),
    ):
        times = _times(memory(each, "fsdp"), step.limit)
        if times <= 1:
            return [*advice, f"fsdp fits on these ranks{how}."]
        if math.isfinite(times):
            advice.append(f"fsdp fits on {math.ceil(times * step.ranks):,} ranks{how}.")
    if advice:
        return advice
    held = memory(again, "fsdp")
    need = max(held["begins"] + held["activations"], held["ends"])
    return [
        f"More ranks do not help: one block unsharded and the activations of one sample, with "
        f"checkpointing, take {in_bytes(need)}, and data parallelism shards neither. Tensor "
        "parallelism splits both, and pipeline parallelism the depth."
    ]


def _times(held: dict[str, float], limit: float) -> float:
    """The factor by which more ranks must share the state for it to fit; infinity if none do."""
    begin, end = limit - held["begins"] - held["activations"], limit - held["ends"]
    if begin <= 0 or end <= 0:
        return math.inf
    sharded = held["always"] + held["gradients"]
    return max(held["always"] / begin, sharded / end, (sharded + held["update"]) / limit)


def in_bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB" if number < 1000 else f"{number:,.0f} TB"


def in_seconds(number: float) -> str:
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if number >= least:
            return f"{number / least:.3g} {unit}"
    return f"{number * 1e6:.3g} µs"
