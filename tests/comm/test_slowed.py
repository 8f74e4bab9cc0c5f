"""The emulated link: results are the real ones, and times the cost model's."""

import time

import torch
import torch.distributed as dist

from minidist import Ours, launch
from minidist.comm.slowed import Slowed
from minidist.schedule.algorithms.ring import ring_all_gather, ring_all_reduce
from minidist.schedule.cost import Link, seconds, switch

LINK = Link(0.02, 1e-6)


def calls_in_a_row() -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    comm = Slowed(Ours(), LINK)
    wrong = []
    tensor, gathered = torch.full((6,), float(rank)), torch.empty(6 * ranks)
    first = comm.all_reduce(tensor, async_op=True)
    second = comm.all_gather(gathered, torch.full((6,), rank + 1.0), async_op=True)
    assert first is not None
    assert second is not None
    for work, schedule, nbytes in (
        (first, ring_all_reduce(ranks), 24),
        (second, ring_all_gather(ranks), 24 * ranks),
    ):
        work.wait()
        start, end = work.span
        if time.monotonic() < end:
            wrong.append("returned before the link was done")
        if abs(end - start - seconds(schedule, nbytes, switch(LINK))) > 1e-6:
            wrong.append(f"took {end - start} s")
    if second.span[0] < first.span[1]:
        wrong.append("the link carried two calls at once")
    if tensor.tolist() != [sum(range(ranks))] * 6:
        wrong.append(f"all_reduce: {tensor}")
    if gathered.tolist() != [r + 1.0 for r in range(ranks) for _ in range(6)]:
        wrong.append(f"all_gather: {gathered}")
    before = time.monotonic()
    part = torch.empty(2)
    assert comm.reduce_scatter(part, torch.ones(2 * ranks)) is None
    if time.monotonic() - before < (ranks - 1) * LINK.alpha or part.tolist() != [ranks, ranks]:
        wrong.append(f"reduce_scatter: {part}, {time.monotonic() - before} s")
    comm.broadcast(part.fill_(rank))
    return [*wrong, *(["broadcast"] if part.any() else [])]


def test_results_are_real_and_times_are_predicted() -> None:
    assert launch(calls_in_a_row, 3) == [[]] * 3
