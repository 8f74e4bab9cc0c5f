"""A training step under minidist's DDP, from_scratch's four and torch's, in turns, in one group.

"alone" trains without communicating: what is above it is communication.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
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
from from_scratch.ddp import BucketedDDP, FlatDDP, OverlappedDDP, PerParameterDDP
from minidist.comm.comm import Comm
from minidist.profiler.spans import Span, hidden
from minidist.profiler.timeline import timeline

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


def lesson(wrap: Callable[..., PerParameterDDP], module: GPT) -> Trained:
    """In one of from_scratch's, which synchronizes before the optimizer's step."""
    model = wrap(module, minidist.Ours())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: model.synchronize())
    return model, optimizer


def bucketed(kind: type[BucketedDDP], module: GPT, comm: Comm) -> BucketedDDP:
    """With several buckets."""
    return kind(module, comm, training.bucket_mib(module))


LESSON: dict[str, Way] = {
    "overlapped": partial(lesson, partial(bucketed, OverlappedDDP)),
    "bucketed": partial(lesson, partial(bucketed, BucketedDDP)),
    "flat": partial(lesson, FlatDDP),
    "naive": partial(lesson, PerParameterDDP),
}


def reference(module: GPT) -> Trained:
    """Torch's DDP."""
    return torchs()(module)


def ways(precision: str) -> dict[str, Way]:
    """On a rank: all that are compared."""
    return {
        "torch": torchs(),
        "alone": training.sgd(lambda module: module),
        "minidist": ours(),
        **LESSON,
        "minidist, views": ours(gradient_as_bucket_view=True),
        "minidist, ring": ours(comm=minidist.Ours(algorithm="ring")),
        "minidist, native": ours(comm=minidist.Native()),
    }


def memory_ways(precision: str) -> dict[str, Way]:
    """On a rank: those whose memory is compared."""
    views = (False, True)
    found = {f"minidist, {each}": ours(gradient_as_bucket_view=each) for each in views}
    return found | {f"torch, {each}": torchs(gradient_as_bucket_view=each) for each in views}


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """Losses and times of steps, the share of communication that is hidden, and memory."""
    scope = replace(scope, precisions=("fp32",))
    comparison = Comparison(ways, reference, untimed=("minidist, views", "minidist, ring"))
    cap = training.bucket_mib(training.build(Config(scope.width), "meta"))
    for row in training.compare(comparison, setup, scope, clock):
        yield row | ({"cap_mib": cap} if row["what"] == "step" else {})
    of_ranks = setup.launch(recorded, scope.width, timeout=clock.left())
    yield {"way": "minidist", **overlap([span for spans in of_ranks for span in spans])}
    if setup == scope.setups[0]:
        yield from memory(setup, scope, clock)


def recorded(width: int) -> list[Span]:
    """On a rank: what ran when in some steps, after some that warm up."""
    os.environ["MINIDIST_CHECK"] = "0"
    trained = Training(ours(), Config(width))
    trained.losses(STEPS)
    with timeline() as line:
        trained.losses(STEPS)
    return line.spans


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
