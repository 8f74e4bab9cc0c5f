"""Any schedule that check() lets through does on ranks what it says, not only those we have."""

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.collectives.runtime import executor as execute
from minidist.collectives.runtime.executor import Sent
from minidist.errors import ScheduleError
from minidist.schedule import program as plan
from minidist.schedule.program import program
from minidist.schedule.schedule import Schedule, Send, Step, bounds
from tests.support.collectives import data, same
from tests.support.schedules import step_of

Parts = dict[int, torch.Tensor]


def any_schedule(seed: int, ranks: int) -> Schedule:
    """Steps of random messages, each kept if the step stays safe; of every fourth with runs."""
    dice, widest = random.Random(seed), 1 if seed % 4 else 3
    chunks = dice.randint(1, 5)
    steps: list[Step] = []
    for _ in range(7):
        sends: list[Send] = []
        for _ in range(dice.randint(0, 8)):
            src, dst = dice.sample(range(ranks), 2)
            chunk = dice.randrange(chunks)
            width = dice.randint(1, min(widest, chunks - chunk))
            send = Send(src, dst, chunk, dice.random() < 0.6, width)
            step = step_of([*sends, send])
            try:
                Schedule("", "all_reduce", ranks, chunks, lambda step=step: [step]).check()
            except ScheduleError:
                continue
            sends.append(send)
        steps.append(step_of(sends))
    return Schedule(f"schedule {seed}", "all_reduce", ranks, chunks, lambda: steps)


def by_hand(schedule: Schedule, parts: list[Parts]) -> list[Parts]:
    """The schedule carried out in one process, on each rank's chunks."""
    held = [{chunk: part.clone() for chunk, part in each.items()} for each in parts]
    for step in schedule:
        before = [{chunk: part.clone() for chunk, part in each.items()} for each in held]
        for send in step:
            for chunk in range(send.chunk, send.chunk + send.width):
                mine, theirs = held[send.dst][chunk], before[send.src][chunk]
                mine.copy_(mine + theirs if send.reduce else theirs)
    return held


def run_on_ranks(schedules: list[Schedule]) -> list[str]:
    """On chunks of one tensor; and on chunks that are tensors of any size, without runs."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for seed, schedule in enumerate(schedules):
        plan.MAX_MESSAGE, dice = (1 << 20, 40, 8, 1)[seed // 2 % 4], random.Random(seed)
        sizes = [dice.choice([0, 1, 3, 11, 30]) for _ in range(schedule.chunks)]
        if seed % 2 == 0:
            sizes = np.diff(bounds(dice.choice([0, 3, 11, 30]), schedule.chunks)).tolist()
        parts = [{c: data(50 * r + c, size, torch.int64) for c, size in enumerate(sizes)}
                 for r in range(ranks)]  # fmt: skip
        want, log = by_hand(schedule, parts)[rank], list[Sent]()
        mine = parts[rank]
        if seed % 2 == 0:
            whole = torch.cat(list(mine.values()))
            mine = dict(enumerate(whole.split(sizes)))
            execute.execute(program(schedule, rank), whole, torch.Tensor.add_, log=log)
        else:
            execute.execute(program(schedule, rank), mine, torch.Tensor.add_, log=log)
        right = all(same(mine[chunk], want[chunk]) for chunk in want)
        sent = [
            sum(sizes[s.chunk : s.chunk + s.width]) for p in schedule for s in p if s.src == rank
        ]
        right = right and sum(each.nbytes for each in log) == 8 * sum(sent)
        if seed % 4:  # without runs: a message is an element or more, and no longer than it may be
            right = right and all(each.nbytes <= max(8, plan.MAX_MESSAGE) for each in log)
        wrong += [] if right else [schedule.name]
    return wrong


@pytest.mark.parametrize("ranks", [2, 4])
def test_any_safe_schedule_does_on_ranks_what_it_says(ranks: int) -> None:
    schedules = [any_schedule(seed, ranks) for seed in range(64)]
    assert sum(len(step) for each in schedules for step in each) > 64 * 7, "most have messages"
    assert launch(run_on_ranks, ranks, schedules) == [[]] * ranks
