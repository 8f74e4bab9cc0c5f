"""A training step under minidist's DDP and under torch's, in turns, in one process group.

Each way trains its own copy of one small GPT on the same text: a step is forward, backward and the
optimizer's update. `alone` trains without talking to anybody: what is above it is communication.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

import minidist
from benchmarks import small_gpt
from benchmarks.record import Row
from benchmarks.small_gpt import RANKS, ROUNDS, STEPS, Training, Way, model
from course.training.models import GPT
from minidist.comm.comm import Native
from minidist.memory.meter import measured
from minidist.profiler.spans import Span, hidden
from minidist.profiler.timeline import timeline

CAP = 1  # MiB of a bucket: with torch's 25 the whole model would be in two
SYNC = ("overlapped", "bucketed", "flat", "naive")
TRIES = 3


def trained(wrap: Callable[[GPT], torch.nn.Module]) -> Way:
    """Train by plain SGD what `wrap` makes of the model."""

    def way(module: GPT) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        wrapped = wrap(module)
        return wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01)

    return way


def ours(**options: Any) -> Way:
    """Wrap in our DDP."""
    return trained(partial(minidist.DistributedDataParallel, bucket_cap_mb=CAP, **options))


def torchs(**options: Any) -> Way:
    """Wrap in torch's DDP."""
    ddp = torch.nn.parallel.DistributedDataParallel
    return trained(partial(ddp, bucket_cap_mb=CAP, **options))


def in_turns(rounds: int) -> small_gpt.Seen:
    """On a rank: way → its turns, and way → its losses."""
    ways: dict[str, Way] = {"torch": torchs(), "alone": trained(lambda module: module)}
    ways |= {sync: ours(sync=sync) for sync in SYNC}
    ways["overlapped, native"] = ours(comm=Native())
    return small_gpt.in_turns(ways, rounds)


def recorded() -> dict[str, list[Span]]:
    """On a rank: sync → what ran when in some steps, after some that warm up."""
    os.environ["MINIDIST_CHECK"] = "0"
    found = {}
    for sync in SYNC:
        training = Training(ours(sync=sync), model())
        for _ in range(STEPS):
            training.step()
        with timeline() as line:
            for _ in range(STEPS):
                training.step()
        found[sync] = line.spans
    return found


def memory(whose: str, views: bool) -> Row:
    """On a rank: bytes that a wrapper and its steps allocate beside the model, held and at most.

    With one short row of text, so that it is gradients and buckets and hardly anything else.
    """
    os.environ["MINIDIST_CHECK"] = "0"
    way = {"minidist": ours, "torch": torchs}[whose](gradient_as_bucket_view=views)
    module = model()

    def begin() -> Training:
        training = Training(way, module, batch=1, context=8)
        minidist.barrier()  # lets go of the broadcast's tensor, and in this thread: that is seen
        for _ in range(STEPS):
            training.step()
        return training

    before = measured(begin)
    curve = measured(before.value.step)  # what it frees first counts below zero
    return {
        "gradient_bytes": sum(parameter.nbytes for parameter in module.parameters()),
        "held_bytes": before.end,
        "peak_bytes": before.end + curve.peak,
    }


def _memories() -> Iterator[Row]:
    """What another thread frees is not seen: of some tries, each in new processes, the least."""
    for whose, views in product(("minidist", "torch"), (False, True)):
        ranks = RANKS[0]
        tries = [minidist.launch(memory, ranks, whose, views, device="cpu") for _ in range(TRIES)]
        least = {key: min(row[key] for rows in tries for row in rows) for key in tries[0][0]}
        yield {"what": "memory", "ranks": ranks, "way": whose, "views": views, **least}


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Quartiles of a step in milliseconds and the ratio of the medians to torch's; the rest once.

    Raises:
        AssertionError: ways that average gradients did not train alike.
    """
    rows: list[Row] = []
    for ranks in RANKS:
        of_ranks = minidist.launch(in_turns, ranks, rounds, device="cpu", timeout=600)
        small_gpt.alike(of_ranks, "torch", but=["alone"])
        much = {"cap_mib": CAP, "rounds": rounds, "steps": STEPS}
        steps = small_gpt.times(of_ranks, "torch")
        rows += [{"what": "step", "ranks": ranks, **row, **much} for row in steps]
        told = minidist.launch(recorded, ranks, device="cpu", timeout=600)
        for sync in SYNC:
            share = hidden(span for rank in told for span in rank[sync])
            rows.append({"what": "hidden", "ranks": ranks, "way": sync, "share": round(share, 3)})
    return rows + list(_memories())
