"""A run of the capstone on a rank, and its log: a line of JSON about the run, then one a step."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course.capstone import task
from course.capstone.cluster import Cluster
from course.timing.progress import progress
from minidist.memory.meter import Meter

METERED = 2  # the step in which memory is measured: the optimizer's state is there
LARGEST = 2**20  # elements of a message, about

Line = dict[str, Any]


def lines(make: Any, steps: int) -> Iterator[Line]:
    """On a rank: train, and yield the lines of the log, the same on all ranks.

    Args:
        make: a class such as `course.capstone.hybrid.Run`.
        steps: how many.
    """
    cluster = Cluster()
    for comm in cluster.comms:
        comm.all_reduce(torch.ones(LARGEST))  # buffers of messages are not counted as the run's
    task.corpus()
    meter = Meter()
    net = task.model()
    cluster.emulate(net)
    run = make(net, cluster)
    yield {"ranks": cluster.ranks, "steps": steps}
    for step in progress(range(steps), "steps"):
        start = cluster.clock.now
        cluster.begin_step()
        if step == METERED:
            curve = meter.curve(partial(run.step, step))
            loss, held = curve.value, curve.peak
        else:
            loss, held = run.step(step), None
        mine = float(loss), cluster.clock.now, cluster.sent, held, cluster.read
        everyone: list[Any] = [None] * cluster.ranks
        dist.all_gather_object(everyone, mine)
        losses, ends, sent, helds, read = map(list, zip(*everyone, strict=True))
        cluster.clock.now = max(ends)
        line = {"step": step, "loss": losses, "seconds": max(ends) - start, "sent": sent}
        yield line | {"held": helds if step == METERED else None, "read": read}


def write(module: str, log: Path) -> None:
    """On a rank: make the run of a module; rank 0 writes the log, whole or not at all."""
    own = import_module(module)
    for name in ("Run", "STEPS"):
        if not hasattr(own, name):
            raise SystemExit(
                f"rank {dist.get_rank()}: {module} has no {name}; `stub.py` shows both"
            )
    first, aside = dist.get_rank() == 0, log.with_name(log.name + ".unfinished")
    with aside.open("w") if first else nullcontext() as file:
        for line in lines(own.Run, own.STEPS):
            if file:
                file.write(json.dumps(line) + "\n")
    if first:
        aside.replace(log)
