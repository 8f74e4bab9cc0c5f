"""`fully_shard` beside torch's (FSDP2) and DDP: the same losses, the time of a step, and memory.

Losses are compared with those of torch's DDP: sharding must not change them. Torch's own
`fully_shard` is one of the ways that are compared, where its backend takes it.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
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
from minidist.comm.comm import Native, Ours

RATE = 1e-3
PREDICTED: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "gradient_as_bucket_view": True},
    "fsdp": {"strategy": "zero3"},
    "fsdp, flat": {"strategy": "zero3", "layout": "flat"},
}
EXACT = {"dtype": torch.float64}
HALF = MixedPrecisionPolicy(torch.bfloat16, torch.float32)  # gradients are summed in float32


@in_each_world
def measure(world: World, where: Where, seconds: float) -> Iterator[Row]:
    """Rows of losses, of steps' times and of memory; AssertionError if losses differ."""
    yield from measured(world, on_rank, ways, where, seconds)


def ddp(module: GPT) -> Trained:
    """Torch's DDP."""
    wrapped = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    return wrapped, AdamW(wrapped.parameters(), lr=RATE)


def torchs(**options: Any) -> Way:
    """Torch's, per block and then the root."""

    def way(module: GPT) -> Trained:
        mesh = init_device_mesh(minidist.device().type, (dist.get_world_size(),))
        for each in (*module.blocks, module):
            torch.distributed.fsdp.fully_shard(each, mesh=mesh, **options)
        return module, AdamW(module.parameters(), lr=RATE)

    return way


def ours(**options: Any) -> Way:
    """Ours, per block and then the root."""

    def way(module: GPT) -> Trained:
        for each in (*module.blocks, module):
            minidist.fully_shard(each, **options)
        return module, AdamW(module.parameters(), lr=RATE)

    return way


def ways() -> dict[str, Way]:
    """Whose losses are compared with those of torch's DDP; on a rank."""
    return {
        "fsdp": ours(),
        "fsdp, flat": ours(layout="flat"),
        "fsdp, kept": ours(reshard_after_forward=False),
        "fsdp, no prefetch": ours(prefetch=False),
        "fsdp, ring": ours(comm=Ours(algorithm="ring")),
    }


def on_rank(ways: Ways, width: int, budget: float) -> list[Row]:
    """All that is measured; `budget`: seconds for a comparison of times."""
    unchecked()
    native = {"torch": torchs(), "fsdp, native": ours(comm=Native())}
    refusals = refused(native)  # Gloo may have no reduce-scatter for a GPU's tensors
    rows: list[Row] = [{"way": way, "refused": why} for way, why in refusals.items()]
    native = {name: way for name, way in native.items() if name not in refusals}
    rows += _losses(ways() | native)
    full = {"ddp": ddp, "fsdp": ours(), "fsdp, flat": ours(layout="flat")}
    half = {"fsdp": ours(mp_policy=HALF), "fsdp, flat": ours(layout="flat", mp_policy=HALF)}
    against = "ddp"
    if "torch" in native:
        against, full["torch"], half["torch"] = "torch", torchs(), torchs(mp_policy=HALF)
    for precision, all_of_it in {"fp32": full, "bf16": {"ddp": ddp, **half}}.items():
        row = raced(all_of_it, against, width, budget)
        rows.append({"step": precision, "against": against, **row})
    rounded = {f"{name}, bf16": way for name, way in half.items()}
    rows += compared(rounded, Training(ddp).losses(), ROUGH)
    return rows + list(footprints(full | rounded, width, PREDICTED, ("torch", "fsdp")))


def _losses(ways: dict[str, Way]) -> Iterator[Row]:
    want = Training(ddp, **EXACT).losses()
    yield from compared(ways, want, CLOSE, **EXACT)
    again = {f"{name}, checkpointed": way for name, way in ways.items() if name == "fsdp"}
    yield from compared(again, want, CLOSE, checkpointed=True, **EXACT)
