"""Any schedule that check() lets through does on ranks what it says, not only those we have."""

import random

import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.collectives.runtime import executor as execute
from minidist.collectives.runtime.executor import Sent, program
from minidist.errors import ScheduleError
from minidist.schedule import program as plan
from minidist.schedule.schedule import Schedule, Send, Step, bounds
from minidist.schedule.simulate import goal, start, traffic
from tests.schedule.test_proof import everything
from tests.support.collectives import data, same

Parts = dict[int, torch.Tensor]


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
        plan.MAX_MESSAGE = (1 << 20, 40, 8, 1)[seed % 4]
        size = random.Random(seed).choice([0, 3, 11, 30])
        parts = [data(r, size, torch.int64) for r in range(ranks)]
        tensor = parts[rank].clone()
        execute.execute(program(schedule, rank), tensor, torch.Tensor.add_)
        wrong += [] if same(tensor, by_hand(schedule, parts)[rank]) else [schedule.name]
    return wrong


def by_hand_in_parts(schedule: Schedule, parts: list[Parts]) -> list[Parts]:
    """The same where every chunk is a tensor of its own."""
    held = [{chunk: part.clone() for chunk, part in each.items()} for each in parts]
    for step in schedule:
        before = [{chunk: part.clone() for chunk, part in each.items()} for each in held]
        for send in step:
            mine, theirs = held[send.dst][send.chunk], before[send.src][send.chunk]
            mine.copy_(mine + theirs if send.reduce else theirs)
    return held


def random_schedules_in_parts() -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for seed in range(60):
        schedule = any_schedule(1000 + seed, ranks, widest=1)
        plan.MAX_MESSAGE = (1 << 20, 40, 8, 1)[seed % 4]
        dice = random.Random(seed)
        sizes = [dice.choice([0, 1, 3, 11, 30]) for _ in range(schedule.chunks)]
        parts = [{c: data(50 * r + c, size, torch.int64) for c, size in enumerate(sizes)}
                 for r in range(ranks)]  # fmt: skip
        mine, want = parts[rank], by_hand_in_parts(schedule, parts)[rank]
        log: list[execute.Sent] = []
        execute.execute(program(schedule, rank), mine, torch.Tensor.add_, log=log)
        right = all(same(mine[chunk], want[chunk]) for chunk in want)
        sent = sum(8 * sizes[s.chunk] for step in schedule for s in step if s.src == rank)
        right = right and sum(each.nbytes for each in log) == sent
        wrong += [] if right else [schedule.name]
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_and_so_it_does_on_chunks_that_are_tensors_of_any_size(ranks: int) -> None:
    assert launch(random_schedules_in_parts, ranks) == [[]] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_safe_schedule_does_on_ranks_what_it_says(ranks: int) -> None:
    moved = [sum(map(len, any_schedule(seed, ranks, 3))) for seed in range(60)]
    assert sum(moved) > 60 * 7, "most steps must have messages"
    assert launch(random_schedules, ranks) == [[]] * ranks


# Each algorithm that we have: what arrives is what its collective promises.


def before(schedule: Schedule, rank: int, numel: int) -> torch.Tensor:
    """This rank's data where it holds any at the start, elsewhere what must not be used."""
    held = start(schedule.collective, schedule.ranks, schedule.chunks, schedule.root)[rank]
    edge, mine = bounds(numel, schedule.chunks), data(rank, numel, torch.int64)
    for chunk, parts in enumerate(held):
        if not parts:
            mine[edge[chunk] : edge[chunk + 1]] = 1_000_000 * (rank + 1)
    return mine


def wrong_chunks(schedule: Schedule, rank: int, result: torch.Tensor) -> list[int]:
    numel = len(result)
    kind, n, chunks = schedule.collective, schedule.ranks, schedule.chunks
    parts, edge = [data(r, numel, torch.int64) for r in range(n)], bounds(numel, chunks)
    wrong = []
    for chunk, wanted in enumerate(goal(kind, n, chunks, schedule.root, schedule.by)[rank]):
        low, high = edge[chunk], edge[chunk + 1]
        if wanted is not None:
            right = torch.stack([parts[r][low:high] for r in wanted]).sum(0)
            wrong += [] if torch.equal(result[low:high], right) else [chunk]
    return wrong


def each_algorithm() -> list[tuple[str, int, list[int], int]]:
    rank, found = dist.get_rank(), []
    for schedule in everything(dist.get_world_size()):
        for numel in (0, 1, 2 * schedule.chunks + 1):
            tensor, log = before(schedule, rank, numel), list[Sent]()
            execute.execute(program(schedule, rank), tensor, torch.Tensor.add_, log=log)
            sent = sum(message.nbytes for message in log)
            found.append((schedule.name, numel, wrong_chunks(schedule, rank, tensor), sent))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_each_algorithm_on_real_ranks(ranks: int) -> None:
    results = launch(each_algorithm, ranks)
    cases = [
        (schedule, numel)
        for schedule in everything(ranks)
        for numel in (0, 1, 2 * schedule.chunks + 1)
    ]
    for rank, found in enumerate(results):
        for (schedule, numel), (name, size, wrong, sent) in zip(cases, found, strict=True):
            assert (name, size, wrong) == (schedule.name, numel, []), f"rank {rank}"
            assert sent == traffic(schedule, numel, itemsize=8).sent_bytes[rank], name
