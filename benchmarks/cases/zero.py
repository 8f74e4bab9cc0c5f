"""A step of AdamW whose state is sharded: `ZeroOptimizer`, and torch's `ZeroRedundancyOptimizer`.

In turns, in one process group. "ddp" shards nothing. Torch's comes twice: as one gets it, and with
"views", where parameters are views of a buffer that is sent at once; ours always are.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.optim import AdamW

import minidist
from benchmarks.cases.ddp import wrapped
from benchmarks.harness.memory import compare_memory
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.training import Comparison, Config, Trained, Way, bucket_mib, build, compare
from course.training.models import GPT
from from_scratch.zero import ZeRO1, ZeRO2
from minidist.comm.comm import Comm

RATE = 1e-3


def torchs(module: GPT, **options: Any) -> Trained:
    """Torch's DDP, and its optimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of what it imports

    ddp = torch.nn.parallel.DistributedDataParallel(
        module, bucket_cap_mb=bucket_mib(module), gradient_as_bucket_view=True
    )
    return ddp, ZeroRedundancyOptimizer(ddp.parameters(), AdamW, lr=RATE, **options)


def torchs_views(module: GPT) -> Trained:
    """The same, and parameters that are views of what is sent."""
    return torchs(module, parameters_as_bucket_view=True)


def unsharded(module: GPT, cap_mib: float | None = None) -> Trained:
    """Our DDP, and torch's AdamW."""
    return wrapped(module, cap_mib, gradient_as_bucket_view=True), AdamW(module.parameters(), RATE)


def ours(stage: int, local: bool, comm: Comm | None = None, cap_mib: float | None = None) -> Way:
    """Ours, on the gradients that our DDP averages; if `local` it reduces them itself."""

    def way(module: GPT) -> Trained:
        cap = cap_mib or bucket_mib(module)
        ddp = module if local else wrapped(module, cap, gradient_as_bucket_view=True, comm=comm)
        gradients = "local" if local else "averaged"
        how: dict[str, Any] = {"stage": stage, "gradients": gradients, "bucket_cap_mb": cap}
        return ddp, minidist.ZeroOptimizer(module.parameters(), AdamW, comm=comm, lr=RATE, **how)

    return way


def lesson(kind: type[ZeRO1], module: GPT) -> Trained:
    """One of from_scratch's, which has what a training loop calls."""
    how: dict[str, Any] = {"bucket_cap_mb": bucket_mib(module), "lr": RATE}
    optimizer: Any = kind(module.parameters(), AdamW, minidist.Ours(), **how)
    return module, optimizer


def ways(precision: str) -> dict[str, Way]:
    """On a rank: all that are compared; in "bf16" forward is autocast."""
    return {
        "torch": torchs,
        "torch, views": torchs_views,
        "ddp": unsharded,
        "stage 1": ours(1, local=False),
        "stage 1, native": ours(1, local=False, comm=minidist.Native()),
        "stage 1, local": ours(1, local=True),
        "stage 2": ours(2, local=True),
        "stage 2, native": ours(2, local=True, comm=minidist.Native()),
        "from_scratch, stage 1": partial(lesson, ZeRO1),
        "from_scratch, stage 2": partial(lesson, ZeRO2),
    }


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """Losses and times of steps, and memory."""
    cap = bucket_mib(build(Config(scope.width), "meta"))
    predicted = {
        "torch": None,
        "torch, views": None,
        "ddp": {"strategy": "ddp", "gradient_as_bucket_view": True},
        "stage 1": {"strategy": "zero1", "gradient_as_bucket_view": True, "bucket_cap_mb": cap},
        "stage 1, local": None,
        "stage 2": {"strategy": "zero2", "bucket_cap_mb": cap},
    }
    comparison = Comparison(ways, torchs, autocast=True, checkpointed=("stage 1", "stage 2"))
    for row in compare(comparison, setup, scope, clock):
        yield row | ({"cap_mib": cap} if row["what"] == "step" else {})
    yield from compare_memory(comparison, predicted, setup, scope, clock)
