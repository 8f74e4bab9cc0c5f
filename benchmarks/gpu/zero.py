"""ZeRO beside torch's ZeroRedundancyOptimizer: the same losses, the time of a step, and memory.

In bfloat16, forward is autocast. Checkpointed blocks are run again in backward.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import AdamW

import minidist
from benchmarks.gpu.section import in_each_world
from benchmarks.gpu.training import (
    CLOSE,
    ROUGH,
    Trained,
    Training,
    Way,
    Ways,
    compared,
    footprints,
    measured,
    raced,
    refused,
    unchecked,
)
from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row
from course.training.models import GPT
from minidist.comm.comm import Comm, Native

RATE = 1e-3
SMALL = {"bucket_cap_mb": 0.1}  # several parts, though the model is small
PREDICTED: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "gradient_as_bucket_view": True},
    "stage 1": {"strategy": "zero1", "gradient_as_bucket_view": True},
    "stage 2": {"strategy": "zero2"},
}
EXACT = {"dtype": torch.float64}


@in_each_world
def measure(world: World, where: Where, seconds: float) -> Iterator[Row]:
    """Rows of losses, of steps' times and of memory; AssertionError if losses differ."""
    yield from measured(world, on_rank, ways, where, seconds)


def torchs(module: GPT) -> Trained:
    """Torch's DDP and its optimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of what it imports

    ddp = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    sharded = ZeroRedundancyOptimizer(
        ddp.parameters(), AdamW, parameters_as_bucket_view=True, lr=RATE
    )
    return ddp, sharded


def unsharded(module: GPT) -> Trained:
    """Our DDP and torch's AdamW."""
    ddp = minidist.DistributedDataParallel(module, gradient_as_bucket_view=True)
    return ddp, AdamW(ddp.parameters(), lr=RATE)


def ours(stage: int = 1, ddp: bool = False, comm: Comm | None = None, **options: Any) -> Way:
    """Ours, on the gradients of our DDP or on local ones."""

    def way(module: GPT) -> Trained:
        wrapped: torch.nn.Module = module
        if ddp:
            wrapped = minidist.DistributedDataParallel(
                module, gradient_as_bucket_view=True, comm=comm
            )
        gradients = "averaged" if ddp else "local"
        sharded = minidist.ZeroOptimizer(
            module.parameters(),
            AdamW,
            stage=stage,
            gradients=gradients,
            comm=comm,
            lr=RATE,
            **options,
        )
        return wrapped, sharded

    return way


def ways() -> dict[str, Way]:
    """Whose losses are compared with those of torch's; on a rank."""
    return {
        "ddp": unsharded,
        "stage 1": ours(ddp=True, **SMALL),
        "stage 1, local": ours(**SMALL),
        "stage 2": ours(2, **SMALL),
        "stage 1, native": ours(ddp=True, comm=Native(), **SMALL),
    }


def on_rank(ways: Ways, width: int, budget: float) -> list[Row]:
    """All that is measured; `budget`: seconds for a comparison of times."""
    unchecked()
    want = Training(torchs, **EXACT).losses()
    rows = list(compared(ways(), want, CLOSE, **EXACT))
    native = {"stage 2, native": ours(2, comm=Native(), **SMALL)}
    refusals = refused(native)  # Gloo may have no reduce-scatter for a GPU's tensors
    rows += [{"way": way, "refused": why} for way, why in refusals.items()]
    rows += compared({} if refusals else native, want, CLOSE, **EXACT)
    again = {"stage 1, checkpointed": ours(ddp=True), "stage 2, checkpointed": ours(2)}
    rows += compared(again, want, CLOSE, checkpointed=True, **EXACT)
    half = {"stage 1, bf16": ours(ddp=True), "stage 2, bf16": ours(2)}
    rows += compared(half, Training(torchs, autocast=True).losses(), ROUGH, autocast=True)
    full = {"torch": torchs, "ddp": unsharded, "stage 1": ours(ddp=True), "stage 2": ours(2)}
    for precision, how in {"fp32": {}, "bf16": {"autocast": True}}.items():
        rows.append({"step": precision, **raced(full, "torch", width, budget, **how)})
    return rows + list(footprints(full, width, PREDICTED, ("torch", "stage 2")))
