"""What a rank holds while it trains the small GPT, and its peak: as predicted, and as measured.

Torch's allocator is what counts. What a process takes once, whatever it trains, such as buffers for
messages, does not count: the training of a tiny model has made it take that before.
"""

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import minidist
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.training import STEPS, Comparison, Config, Training, Way, build, refused
from minidist.memory.activations import expected
from minidist.memory.meter import Meter
from minidist.memory.predict import predict

TINY = 16  # width

Ways = Callable[[str], dict[str, Way]]  # precision → way by name, on a rank
Predictions = dict[str, dict[str, Any] | None]  # way → arguments of `predicted`; None: unknown
Case = tuple[str, Config]  # way, and what it trains


def footprints(ways: Ways, cases: list[Case]) -> dict[Case, Row]:
    """On a rank: bytes of each training that is supported, weights included, held and at most."""
    os.environ["MINIDIST_CHECK"] = "0"
    unsupported = refused(ways("fp32"))
    Meter(minidist.device())  # what is allocated from here on is counted when it is freed
    gc.freeze()  # modules and the like need not be looked through at each collection
    return {
        (name, config): _footprint(ways("fp32")[name], config)
        for name, config in cases
        if name not in unsupported
    }


def _footprint(way: Way, config: Config) -> Row:
    _trained(way, replace(config, width=TINY))
    free()
    meter = Meter(minidist.device())
    training = _trained(way, config)
    free()
    peak = meter.curve(training.step).peak
    free()
    return {"held_bytes": meter.now(), "peak_bytes": peak}


def free() -> None:
    """Have threads free the last message's tensors, and Python what lies in cycles."""
    minidist.barrier()
    if minidist.device().type == "cuda":
        torch.cuda.synchronize()
    for _ in range(5):  # a tensor that C++ still held is found by a later round only
        gc.collect()


def _trained(way: Way, config: Config) -> Training:
    training = Training(way, config)
    training.losses(STEPS)
    return training


def largest(
    ways: Ways, cases: list[Case], setup: Setup, tries: int, clock: Clock
) -> dict[Case, Row]:
    """For each case the bytes of the rank that holds most.

    A thread may free the last message's tensors a little late: of some tries the least counts.
    """
    found = [setup.launch(footprints, ways, cases, timeout=clock.left()) for _ in range(tries)]

    def most(case: Case, key: str) -> Any:
        return max(min(rank[case][key] for rank in tried) for tried in zip(*found, strict=True))

    return {
        case: {key: most(case, key) for key in ("held_bytes", "peak_bytes")} for case in found[0][0]
    }


def compare_memory(
    comparison: Comparison, predictions: Predictions, setup: Setup, scope: Scope, clock: Clock
) -> Iterator[Row]:
    """A row for each way in `predictions`: held and peak, and both as predicted."""
    batch, tokens = scope.memory_batch
    config = Config(scope.width, batch=batch, tokens=tokens)
    cases = [(way, config) for way in predictions]
    cases += [(way, replace(config, checkpointed=True)) for way in comparison.checkpointed]
    for (way, trained), row in largest(comparison.ways, cases, setup, scope.tries, clock).items():
        if how := predictions[way]:
            row |= predicted(trained, setup.ranks, **how)
        name = f"{way}, checkpointed" if trained.checkpointed else way
        yield {"what": "memory", "way": name, **row}


def predicted(config: Config, ranks: int, strategy: str, **how: Any) -> Row:
    """The same by `minidist.memory.predict`, which takes `how`, with blocks as units."""
    units = [f"blocks.{number}" for number in range(config.layers)] if strategy == "fsdp" else []
    kept = activations(config)
    # Where ranks differ, the first one has most.
    found = predict(build(config, "meta"), ranks, strategy, activations=kept, units=units, **how)
    return {"predicted_held_bytes": found.state.total, "predicted_peak_bytes": found.peak}


def activations(config: Config) -> int:
    """What autograd keeps of a forward pass: of each block all of it, or only its input.

    A checkpointed block runs again when backward reaches it: one at a time keeps all.
    """
    one, two = (_kept(replace(config, layers=n, checkpointed=False)) for n in (1, 2))
    entry = config.batch * config.tokens * config.width * torch.float32.itemsize
    return one + (config.layers - 1) * (entry if config.checkpointed else two - one)


@cache
def _kept(config: Config) -> int:
    module = build(config, "meta")
    ids = torch.zeros(config.batch, config.tokens, dtype=torch.int64, device="meta")
    loss = expected(lambda: cross_entropy(module(ids).flatten(0, 1), ids.flatten()))
    return sum(loss.values())
