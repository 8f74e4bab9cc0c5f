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

[Note: returned at once] malloc keeps freed memory for later, and the limit would count that too.
So from 32 KiB on each allocation is made a mapping of its own (mallopt(3)), and goes when freed.
"""

import ctypes
import gc
import math
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from torch.optim import AdamW

import minidist
from benchmarks.cases import zero
from benchmarks.harness.memory import predicted
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope
from benchmarks.harness.training import Config, Trained, Training, Way, build
from course.training.models import GPT

RANKS = 4
LIMIT = 64 << 20  # bytes of a rank
MODEL = Config(batch=2)
STEPS = 2  # the second has gradients, activations and the optimizer's state at once
OWN_MAPPING = 32 << 10  # bytes: see [Note: returned at once]
M_MMAP_THRESHOLD = -3  # malloc.h's number
NO_MEMORY = ("allocate memory", "MemoryError", "bad_alloc")
CAP = 1  # MiB of a bucket

libc = ctypes.CDLL(None)


def fsdp(module: GPT) -> Trained:
    """Parameters too; the model comes without memory, and no rank ever holds all of it."""
    for each in (*module.blocks, module):
        minidist.fully_shard(each)
    minidist.materialize(module)
    return module, AdamW(module.parameters(), lr=zero.RATE)


WAYS: dict[str, Way] = {
    "ddp": partial(zero.unsharded, cap_mib=CAP),
    "zero1": zero.ours(1, local=False, cap_mib=CAP),
    "zero2": zero.ours(2, local=True, cap_mib=CAP),
    "fsdp": fsdp,
}
PREDICTED: dict[str, dict[str, Any]] = {
    "ddp": {"gradient_as_bucket_view": True},
    "zero1": {"gradient_as_bucket_view": True, "bucket_cap_mb": CAP},
    "zero2": {"bucket_cap_mb": CAP},
    "fsdp": {},
}


def train(strategy: str, config: Config) -> list[float]:
    """On a rank: make, wrap and train a model; the losses."""
    training = Training(WAYS[strategy], config, "meta" if strategy == "fsdp" else None)
    return training.losses(STEPS).tolist()


def train_within(limit: int, strategy: str, config: Config) -> list[float]:
    """On a rank: the same when it may not take more than so many bytes."""
    os.environ["MINIDIST_CHECK"] = "0"
    libc.mallopt(M_MMAP_THRESHOLD, OWN_MAPPING)
    train(strategy, replace(config, layers=1))  # takes what a process needs once
    restrict(limit)
    return train(strategy, config)


def fits(limit: int, strategy: str, checkpointed: bool, layers: int) -> bool:
    """Whether the ranks can train a model of so many layers.

    Raises:
        RankError: they cannot, but not for lack of memory.
    """
    config = replace(MODEL, layers=layers, checkpointed=checkpointed)
    try:
        of_ranks = minidist.launch(train_within, RANKS, limit, strategy, config, device="cpu")
    except minidist.RankError as error:
        if not any(words in str(error) for words in NO_MEMORY):
            raise
        return False
    return all(map(math.isfinite, chain.from_iterable(of_ranks)))


def restrict(nbytes: int) -> None:
    """Limit this process to so many bytes more than it has: see [Note: what counts]."""
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
        config = replace(MODEL, layers=layers, checkpointed=checkpointed)
        found = predicted(config, RANKS, strategy, **PREDICTED[strategy])
        return bool(found["predicted_peak_bytes"] <= limit)

    return most(within, 1)


def measure(scope: Scope, clock: Clock, limit: int = LIMIT) -> Iterator[Row]:
    """For each strategy the most layers that fit, and the most that should."""
    for checkpointed, strategy in product((False, True), WAYS):
        guess = deepest(limit, strategy, checkpointed)
        layers = most(partial(fits, limit, strategy, checkpointed), guess)
        module = build(replace(MODEL, layers=layers), "meta")
        yield {
            "what": "largest model",
            "ranks": RANKS,
            "limit": limit,
            "strategy": strategy,
            "checkpointed": checkpointed,
            "layers": layers,
            "predicted_layers": guess,
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "width": MODEL.width,
            "tokens": MODEL.batch * MODEL.tokens,
        }
