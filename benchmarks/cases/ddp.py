"""A training step under minidist's DDP and under torch's, in turns, in one process group.

"alone" trains without communicating: what is above it is communication.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import minidist
from benchmarks.harness import training
from benchmarks.harness.memory import largest
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.training import STEPS, Comparison, Config, Trained, Training, Way
from course.training.models import GPT
from minidist.profiler.spans import Span, hidden
from minidist.profiler.timeline import timeline

SYNC = ("overlapped", "bucketed", "flat", "naive")
MEMORY = Config(batch=1, tokens=8)  # gradients and buckets, and hardly anything else


def wrapped(module: GPT, cap_mib: float | None = None, **options: Any) -> torch.nn.Module:
    """In our DDP, with several buckets."""
    cap = cap_mib or training.bucket_mib(module)
    sizes: dict[str, Any] = {"bucket_cap_mb": cap, "first_bucket_mb": min(1, cap)}
    return minidist.DistributedDataParallel(module, **sizes, **options)


def torchs(**options: Any) -> Way:
    """In torch's DDP."""
    ddp = torch.nn.parallel.DistributedDataParallel
    return training.sgd(
        lambda module: ddp(module, bucket_cap_mb=training.bucket_mib(module), **options)
    )


def ours(**options: Any) -> Way:
    """In our DDP."""
    return training.sgd(lambda module: wrapped(module, **options))


def reference(module: GPT) -> Trained:
    """Torch's DDP."""
    return torchs()(module)


def ways(precision: str) -> dict[str, Way]:
    """On a rank: all that are compared."""
    found = {"torch": torchs(), "alone": training.sgd(lambda module: module)}
    found |= {sync: ours(sync=sync) for sync in SYNC}
    found["overlapped, views"] = ours(gradient_as_bucket_view=True)
    found["overlapped, ring"] = ours(comm=minidist.Ours(algorithm="ring"))
    found["overlapped, native"] = ours(comm=minidist.Native())
    return found


def memory_ways(precision: str) -> dict[str, Way]:
    """On a rank: those whose memory is compared."""
    views = (False, True)
    found = {f"minidist, {each}": ours(gradient_as_bucket_view=each) for each in views}
    return found | {f"torch, {each}": torchs(gradient_as_bucket_view=each) for each in views}


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """Losses and times of steps, the share of communication that is hidden, and memory."""
    scope = replace(scope, precisions=("fp32",))
    comparison = Comparison(ways, reference, untimed=("overlapped, views", "overlapped, ring"))
    cap = training.bucket_mib(training.build(Config(scope.width), "meta"))
    for row in training.compare(comparison, setup, scope, clock):
        yield row | ({"cap_mib": cap} if row["what"] == "step" else {})
    of_ranks = setup.launch(timelines, scope.width, timeout=clock.left())
    for sync in SYNC:
        yield {"way": sync, **overlap([span for rank in of_ranks for span in rank[sync]])}
    if setup == scope.setups[0]:
        yield from memory(setup, scope, clock)


def timelines(width: int) -> dict[str, list[Span]]:
    """On a rank: sync → what ran when in some steps, after some that warm up."""
    os.environ["MINIDIST_CHECK"] = "0"
    found = {}
    for sync in SYNC:
        trained = Training(ours(sync=sync), Config(width))
        trained.losses(STEPS)
        with timeline() as recorded:
            trained.losses(STEPS)
        found[sync] = recorded.spans
    return found


def overlap(spans: list[Span]) -> Row:
    """The share of communication that ran while backward did; by CUDA events on GPUs."""
    sent = [span for span in spans if span.lane == "communication"]
    return {
        "what": "hidden",
        "share": round(hidden(spans), 3),
        "buckets": len({span.name for span in sent}),
        "communication_ms": round(1e3 * sum(span.end - span.start for span in sent), 3),
    }


def memory(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """Bytes that a wrapper and its steps allocate beside the model, held and at most."""
    config = replace(MEMORY, width=scope.width)
    cases = [(way, config) for way in memory_ways("fp32")]
    model = sum(parameter.nbytes for parameter in training.build(config, "meta").parameters())
    for (name, _), found in largest(memory_ways, cases, setup, scope.tries, clock).items():
        way, views = name.split(", ")
        beside = {key: nbytes - model for key, nbytes in found.items()}
        what = {"what": "memory", "way": way, "views": views == "True"}
        yield {**what, "gradient_bytes": model, **beside}
