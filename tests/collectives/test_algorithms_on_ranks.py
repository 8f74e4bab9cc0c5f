"""Every algorithm between real ranks: what arrives is what its collective promises."""

import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.collectives.runtime.executor import Sent, execute, program
from minidist.schedule.schedule import Schedule, bounds
from minidist.schedule.simulate import goal, start, traffic
from tests.schedule.test_proof import everything
from tests.support.collectives import data


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
            execute(program(schedule, rank), tensor, torch.Tensor.add_, log=log)
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
