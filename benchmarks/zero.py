"""A step of AdamW whose state is sharded: `ZeroOptimizer`, and torch's `ZeroRedundancyOptimizer`.

In turns, in one process group. `ddp` shards nothing. Of torch's there are two: as one gets it, and
`views`, where parameters are views of a buffer that is sent in one go; ours always are.
"""

from typing import Any

import torch
from torch.optim import AdamW

import minidist
from benchmarks import small_gpt
from benchmarks.footprint import TRIES, memory
from benchmarks.record import Row
from benchmarks.small_gpt import RANKS, ROUNDS, STEPS, WIDTH, Way
from course.training.models import GPT
from minidist.comm.comm import Comm, Native

CAP = 1  # MiB of a bucket: with torch's 25 the whole model would be in two
RATE = 1e-3

Trained = tuple[torch.nn.Module, torch.optim.Optimizer]


def torchs(**options: Any) -> Way:
    """Torch's DDP, and its optimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of what it imports

    def way(module: GPT) -> Trained:
        ddp = torch.nn.parallel.DistributedDataParallel(
            module, bucket_cap_mb=CAP, gradient_as_bucket_view=True
        )
        return ddp, ZeroRedundancyOptimizer(ddp.parameters(), AdamW, lr=RATE, **options)

    return way


def _ddp(module: GPT, comm: Comm | None) -> torch.nn.Module:
    return minidist.DistributedDataParallel(
        module, bucket_cap_mb=CAP, gradient_as_bucket_view=True, comm=comm
    )


def unsharded(module: GPT) -> Trained:
    """Our DDP, and torch's AdamW."""
    ddp = _ddp(module, None)
    return ddp, AdamW(ddp.parameters(), lr=RATE)


def averaged(comm: Comm | None = None) -> Way:
    """Stage 1 with the gradients that our DDP averages."""

    def way(module: GPT) -> Trained:
        ddp = _ddp(module, comm)
        sharded = minidist.ZeroOptimizer(
            ddp.parameters(), AdamW, bucket_cap_mb=CAP, comm=comm, lr=RATE
        )
        return ddp, sharded

    return way


def local(stage: int, comm: Comm | None = None) -> Way:
    """Either stage with gradients that it reduces itself."""

    def way(module: GPT) -> Trained:
        sharded = minidist.ZeroOptimizer(
            module.parameters(),
            AdamW,
            stage=stage,
            gradients="local",
            bucket_cap_mb=CAP,
            comm=comm,
            lr=RATE,
        )
        return module, sharded

    return way


def ways() -> dict[str, Way]:
    """On a rank: all that are compared."""
    return {
        "torch": torchs(),
        "torch, views": torchs(parameters_as_bucket_view=True),
        "ddp": unsharded,
        "stage 1": averaged(),
        "stage 1, native": averaged(Native()),
        "stage 1, local": local(1),
        "stage 2": local(2),
        "stage 2, native": local(2, Native()),
    }


MEMORY: dict[str, dict[str, Any] | None] = {  # way → what is predicted; None: nothing is
    "torch": None,
    "torch, views": None,
    "ddp": {"strategy": "ddp", "gradient_as_bucket_view": True},
    "stage 1": {"strategy": "zero1", "gradient_as_bucket_view": True, "bucket_cap_mb": CAP},
    "stage 1, local": None,
    "stage 2": {"strategy": "zero2", "bucket_cap_mb": CAP},
}


def in_turns(rounds: int, width: int) -> small_gpt.Seen:
    """On a rank: way → its turns, and way → its losses."""
    return small_gpt.in_turns(ways(), rounds, width)


def measure(
    rounds: int = ROUNDS, ranks: tuple[int, ...] = RANKS, width: int = WIDTH, tries: int = TRIES
) -> list[Row]:
    """Quartiles of a step in milliseconds, the ratio of the medians to torch's; bytes.

    Raises:
        AssertionError: ways did not train alike.
    """
    rows: list[Row] = []
    for n in ranks:
        of_ranks = minidist.launch(in_turns, n, rounds, width, device="cpu", timeout=600)
        small_gpt.alike(of_ranks, "torch")
        much = {"cap_mib": CAP, "rounds": rounds, "steps": STEPS}
        steps = small_gpt.times(of_ranks, "torch")
        rows += [{"what": "step", "ranks": n, **row, **much} for row in steps]
        rows += memory(ways, MEMORY, n, width, tries)
    return rows
