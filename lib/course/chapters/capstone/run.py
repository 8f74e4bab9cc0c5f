"""A run of the capstone on a rank, and its log: a line of JSON about the run, then one a step."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course.ask import line as asked
from course.ask.verdict import Wrong, number
from course.chapters.capstone import task
from course.chapters.capstone.cluster import Ask, Cluster, Keeper, RanksClock
from course.project.submission import file_of, guarded
from course.timing.progress import progress
from minidist.memory.meter import Meter

METERED = 2  # the step in which memory is measured: the optimizer's state is there
LARGEST = 2**20  # elements of a message, about
FORECAST = ("held", "sent", "seconds")  # the forecast's numbers

Line = dict[str, Any]


def lines(make: Any, steps: int, ask: Ask | None = None) -> Iterator[Line]:
    """On a rank: train, and yield a line of the log for each step, the same on all ranks.

    `make` is a class such as `mine.capstone.Run`; `ask` asks the grader's keeper in a rerun.
    """
    ask = ask or Keeper().ask
    cluster = Cluster(ask)
    clock = RanksClock(ask, cluster.rank)
    for comm in (cluster.world, cluster.node, cluster.across):
        comm.all_reduce(torch.ones(LARGEST))  # buffers of messages are not counted as the run's
    task.corpus()
    meter = Meter()
    net = task.model()
    net.load_state_dict(ask("weights"))
    cluster.emulate(net)
    run = make(net, cluster)
    for step in progress(range(steps), "steps"):
        start, sent_before = clock.now, clock.sent
        if step == METERED:
            curve = meter.curve(partial(run.step, step))
            loss, held = curve.value, curve.peak
        else:
            loss, held = run.step(step), None
        mine = float(loss), clock.now, clock.sent - sent_before, held, ask("read", cluster.rank)
        everyone: list[Any] = [None] * cluster.ranks
        dist.all_gather_object(everyone, mine)
        losses, ends, sent, helds, read = map(list, zip(*everyone, strict=True))
        clock.wait(max(ends))
        line = {"step": step, "loss": losses, "seconds": max(ends) - start, "sent": sent}
        yield line | {"held": helds if step == METERED else None, "read": read}


def first_steps(module: str, steps: int, path: str = "") -> list[Line]:
    """On a rank: the first lines of a module's log; `path`: of a line to the grader's keeper."""
    ask = asked.Line(path).ask if path else None
    return guarded(lambda: [*lines(import_module(module).Run, steps, ask)])


def digest_of(file: Path) -> str:
    """A hash of a module's file."""
    return sha256(file.read_bytes()).hexdigest()


def forecast_of(told: Any) -> dict[str, float]:
    """The numbers of a forecast; Wrong if one is missing."""
    found = {}
    for name in FORECAST:
        value = told.get(name) if isinstance(told, Mapping) else None
        try:
            found[name] = number(value)
        except TypeError as error:
            needed = f"FORECAST[{name!r}] has to be a number; it is {value!r:.80}."
            raise Wrong(f"Forecast before you run: {needed}") from error
    return found


def _runs(log: Path) -> int:
    """The number of runs that have been written to a log, one over the other."""
    try:
        return int(json.loads(log.read_text().partition("\n")[0])["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def write(module: str, log: Path | None = None) -> None:
    """On a rank: make the run of a module; rank 0 writes the log, whole or not at all.

    Its first line has the forecast, which the module makes before it runs.
    """
    file = file_of(module)
    log, own = log or file.with_suffix(".jsonl"), import_module(module)
    forecast = forecast_of(getattr(own, "FORECAST", None))
    first, aside = dist.get_rank() == 0, log.with_name(log.name + ".unfinished")
    head = {"digest": digest_of(file), "run": _runs(log) + 1, "forecast": forecast}
    with (aside if first else Path(os.devnull)).open("w") as out:
        for line in chain([head], lines(own.Run, task.STEPS)):
            print(json.dumps(line), file=out)
    if first:
        aside.replace(log)
