"""The deepest GPT that trains when no rank may take more than so much memory, by each strategy.

The limit is one on the process, not a sum: `RLIMIT_DATA`, set on every rank before there is a
model, so many bytes above what the process has then. Beyond it the system refuses memory, and
torch raises. A model fits if it is made, wrapped and trained for two steps of AdamW, the first of
which makes the optimizer's state.

[Note: what counts] `RLIMIT_DATA` counts memory that is private and writable (`VmData` in
/proc/self/status; setrlimit(2)): whatever comes from malloc, and so every tensor, temporaries and
activations included; new threads' stacks too. It counts an allocation when it is made, not when it
is first written. Not counted is what is shared or only mapped: code, and the 12 MiB a peer through
which ranks of one host exchange messages. `RLIMIT_AS` would count those as well, and addresses
that are merely reserved, of which a process has gigabytes. What a process needs once, such as
threads, a small model has made it take before the limit is set.

[Note: given back at once] malloc keeps freed memory for later, and the limit would count that too.
So from 32 KiB on each allocation is made a mapping of its own (mallopt(3)), and goes when freed.
"""

import ctypes
import gc
import math
import os
import resource
from collections.abc import Callable
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

import minidist
from benchmarks.footprint import predicted
from benchmarks.record import Row
from benchmarks.small_gpt import CONTEXT, WIDTH, Training, Way, model
from course.training.models import GPT

RANKS = 4
LIMIT = 64 << 20  # bytes of a rank
BATCH = 2  # rows of a rank
STEPS = 2  # the second has gradients, activations and the optimizer's state at once
OWN_MAPPING = 32 << 10  # bytes: see [Note: given back at once]
M_MMAP_THRESHOLD = -3  # malloc.h's number
NO_MEMORY = ("allocate memory", "MemoryError", "bad_alloc")
RATE = 1e-3
CAP = 1  # MiB of a bucket

Trained = tuple[torch.nn.Module, torch.optim.Optimizer]
libc = ctypes.CDLL(None)


def ddp(module: GPT) -> Trained:
    """Everything on every rank."""
    wrapped = minidist.DistributedDataParallel(
        module, bucket_cap_mb=CAP, gradient_as_bucket_view=True
    )
    return wrapped, AdamW(wrapped.parameters(), lr=RATE)


def zero(stage: int) -> Way:
    """Stage 1: the optimizer's state sharded; stage 2: gradients too."""

    def way(module: GPT) -> Trained:
        wrapped: torch.nn.Module = module
        gradients = "local"
        if stage == 1:
            wrapped = minidist.DistributedDataParallel(
                module, bucket_cap_mb=CAP, gradient_as_bucket_view=True
            )
            gradients = "averaged"
        sharded = minidist.ZeroOptimizer(
            module.parameters(), AdamW, stage=stage, gradients=gradients, bucket_cap_mb=CAP, lr=RATE
        )
        return wrapped, sharded

    return way


def fsdp(module: GPT) -> Trained:
    """Parameters too; the model comes without memory, and no rank ever holds all of it."""
    for each in (*module.blocks, module):
        minidist.fully_shard(each)
    minidist.materialize(module)
    return module, AdamW(module.parameters(), lr=RATE)


WAYS: dict[str, Way] = {"ddp": ddp, "zero1": zero(1), "zero2": zero(2), "zero3": fsdp}
HOW: dict[str, dict[str, Any]] = {  # the same for the prediction
    "ddp": {"gradient_as_bucket_view": True},
    "zero1": {"gradient_as_bucket_view": True, "bucket_cap_mb": CAP},
    "zero2": {"bucket_cap_mb": CAP},
    "zero3": {},
}


def build(strategy: str, layers: int, checkpointed: bool) -> GPT:
    """The model; for FSDP without memory. `checkpointed`: blocks are run again in backward."""
    module = model(WIDTH, layers, "meta" if strategy == "zero3" else "cpu")
    for block in module.blocks if checkpointed else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return module


def train(strategy: str, layers: int, checkpointed: bool) -> list[float]:
    """On a rank: make, wrap and train a model; the losses."""
    training = Training(WAYS[strategy], build(strategy, layers, checkpointed), BATCH, CONTEXT)
    for _ in range(STEPS):
        training.step()
    return training.losses


def train_within(limit: int, strategy: str, layers: int, checkpointed: bool) -> list[float]:
    """On a rank: the same when it may not take more than so many bytes."""
    os.environ["MINIDIST_CHECK"] = "0"
    libc.mallopt(M_MMAP_THRESHOLD, OWN_MAPPING)
    train(strategy, 1, checkpointed)  # takes what a process needs once
    restrict(limit)
    return train(strategy, layers, checkpointed)


def fits(limit: int, strategy: str, checkpointed: bool, layers: int) -> bool:
    """Whether the ranks can train a model of so many layers.

    Raises:
        RankError: they cannot, but not for want of memory.
    """
    each = (train_within, RANKS, limit, strategy, layers, checkpointed)
    try:
        of_ranks = minidist.launch(*each, device="cpu")
    except minidist.RankError as error:
        if not any(words in str(error) for words in NO_MEMORY):
            raise
        return False
    return all(map(math.isfinite, chain.from_iterable(of_ranks)))


def restrict(nbytes: int) -> None:
    """Let this process take so many bytes more than it has: see [Note: what counts]."""
    gc.collect()
    libc.malloc_trim(0)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (taken() + nbytes, hard))


def taken() -> int:
    """Bytes of this process that count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not tell VmData")


def most(fits: Callable[[int], bool], guess: int) -> int:
    """The largest number that fits, 0 if not even 1; found quickly if it is near `guess`."""
    low, high, stride = 0, None, 1
    number = max(1, guess)
    while high is None or high - low > 1:
        if fits(number):
            low = number
        else:
            high = number
        if high is None:
            number = low + stride
        elif low == 0:
            number = max(high - stride, 1)
        else:
            number = (low + high) // 2
        stride *= 2
    return low


def deepest(limit: int, strategy: str, checkpointed: bool) -> int:
    """The most layers for which what is predicted is within the limit."""

    def within(layers: int) -> bool:
        bytes_ = predicted(
            strategy, RANKS, WIDTH, BATCH, CONTEXT, layers, checkpointed, **HOW[strategy]
        )
        return bytes_["predicted_peak_bytes"] <= limit

    return most(within, 1)


def measure(limit: int = LIMIT) -> list[Row]:
    """For each strategy the most layers that fit, and the most that should."""
    rows: list[Row] = []
    for checkpointed, strategy in product((False, True), WAYS):
        guess = deepest(limit, strategy, checkpointed)
        layers = most(partial(fits, limit, strategy, checkpointed), guess)
        parameters = sum(p.numel() for p in build("zero3", layers, False).parameters())
        rows.append(
            {
                "what": "largest model",
                "ranks": RANKS,
                "limit": limit,
                "strategy": strategy,
                "checkpointed": checkpointed,
                "layers": layers,
                "predicted_layers": guess,
                "parameters": parameters,
                "width": WIDTH,
                "tokens": BATCH * CONTEXT,
            }
        )
    return rows
