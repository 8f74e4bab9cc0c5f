"""Any schedule that check() lets through does on ranks what it says, not only those we have."""

import random

import pytest
import torch
import torch.distributed as dist

from minidist import execute, launch, plan
from minidist.execute import program
from minidist.schedule import Schedule, ScheduleError, Send, Step, bounds
from tests.oracle import data, same


def any_schedule(seed: int, ranks: int, widest: int) -> Schedule:
    """Steps of random messages, each kept if the step stays safe."""
    dice = random.Random(seed)
    chunks = dice.randint(1, 5)
    steps: list[Step] = []
    for _ in range(7):
        sends: list[Send] = []
        for _ in range(dice.randint(0, 8)):
            src, dst = dice.sample(range(ranks), 2)
            chunk = dice.randrange(chunks)
            width = dice.randint(1, min(widest, chunks - chunk))
            send = Send(src, dst, chunk, dice.random() < 0.6, width)
            step = Step.from_sends([*sends, send])
            try:
                Schedule("", "all_reduce", ranks, chunks, lambda step=step: [step]).check()
            except ScheduleError:
                continue
            sends.append(send)
        steps.append(Step.from_sends(sends))
    return Schedule(f"schedule {seed}", "all_reduce", ranks, chunks, lambda: steps)


def by_hand(schedule: Schedule, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The schedule carried out in one process."""
    edge = bounds(len(parts[0]), schedule.chunks).tolist()
    held = [part.clone() for part in parts]
    for step in schedule:
        before = [tensor.clone() for tensor in held]
        for send in step:
            where = slice(edge[send.chunk], edge[send.chunk + send.width])
            if send.reduce:
                held[send.dst][where] += before[send.src][where]
            else:
                held[send.dst][where] = before[send.src][where]
    return held


def random_schedules() -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for seed in range(60):
        schedule = any_schedule(seed, ranks, widest=1 if seed % 2 else 3)
        plan.PIECE = (1 << 20, 40, 8, 1)[seed % 4]
        size = random.Random(seed).choice([0, 3, 11, 30])
        parts = [data(r, size, torch.int64) for r in range(ranks)]
        tensor = parts[rank].clone()
        execute.execute(program(schedule, rank), tensor, torch.Tensor.add_)
        wrong += [] if same(tensor, by_hand(schedule, parts)[rank]) else [schedule.name]
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_safe_schedule_does_on_ranks_what_it_says(ranks: int) -> None:
    moved = [sum(map(len, any_schedule(seed, ranks, 3))) for seed in range(60)]
    assert sum(moved) > 60 * 7, "most steps must have messages"
    assert launch(random_schedules, ranks) == [[]] * ranks
