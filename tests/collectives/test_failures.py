"""A peer that dies in the middle of a collective: an error that says where, or a right result."""

import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import RankError, launch
from minidist.collectives.runtime.executor import _Flight, _Load
from minidist.collectives.runtime.work import Work
from tests.support.collectives import data, reduced, same

RANKS, DEAD = 4, 2
SECONDS = 5  # a group's time

Started = tuple[Work | None, torch.Tensor, torch.Tensor]  # what is written, and what it must be
Call = Callable[[dist.ProcessGroup], Started]


def calls() -> dict[str, Call]:
    """Each collective, asynchronously; together they need every rank in every role."""
    rank = dist.get_rank()
    everybody = range(RANKS)
    mine, parts = data(rank, 1000), [data(r, 1000) for r in everybody]
    rows = torch.cat(parts).view(RANKS, 1000)
    to_me = torch.cat([data(r, 1000).view(RANKS, 250)[rank] for r in everybody])
    sums, new = reduced(parts), torch.zeros

    def on(root: int, tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
        return tensors if rank == root else None

    def broadcast(group: dist.ProcessGroup) -> Started:
        tensor = mine.clone()
        return minidist.broadcast(tensor, 0, group, True), tensor, parts[0]

    def reduce(group: dist.ProcessGroup) -> Started:
        tensor = mine.clone()
        want = sums if rank == 0 else mine
        return minidist.reduce(tensor, 0, group=group, async_op=True), tensor, want

    def all_reduce(group: dist.ProcessGroup) -> Started:
        tensor = mine.clone()
        return minidist.all_reduce(tensor, group=group, async_op=True), tensor, sums

    def gather(group: dist.ProcessGroup) -> Started:
        whole = new(RANKS, 1000)
        work = minidist.gather(mine, on(0, list(whole)), 0, group, True)
        return work, whole, rows if rank == 0 else new(RANKS, 1000)

    def scatter(group: dist.ProcessGroup) -> Started:
        tensor = new(1000)
        work = minidist.scatter(tensor, on(DEAD, parts), DEAD, group, True)
        return work, tensor, parts[rank]

    def all_gather(group: dist.ProcessGroup) -> Started:
        whole = new(RANKS, 1000)
        return minidist.all_gather(list(whole), mine, group, True), whole, rows

    def reduce_scatter(group: dist.ProcessGroup) -> Started:
        tensor, given = new(250), list(mine.view(RANKS, 250))
        work = minidist.reduce_scatter(tensor, given, group=group, async_op=True)
        return work, tensor, sums.view(RANKS, 250)[rank]

    def all_to_all(group: dist.ProcessGroup) -> Started:
        tensor = new(1000)
        blocks = list(tensor.view(RANKS, 250)), list(mine.view(RANKS, 250))
        return minidist.all_to_all(*blocks, group, True), tensor, to_me

    def all_to_all_single(group: dist.ProcessGroup) -> Started:
        tensor = new(1000)
        work = minidist.all_to_all_single(tensor, mine, group=group, async_op=True)
        return work, tensor, to_me

    def ring_shift(group: dist.ProcessGroup) -> Started:
        tensor = mine.clone()
        return minidist.ring_shift(tensor, 1, group, True), tensor, parts[rank - 1]

    def barrier(group: dist.ProcessGroup) -> Started:
        return minidist.barrier(group, True), mine, mine

    every = [broadcast, reduce, all_reduce, gather, scatter, all_gather, reduce_scatter]
    every += [all_to_all, all_to_all_single, ring_shift, barrier]
    return {call.__name__: call for call in every}


def die_in_the_middle(of: int) -> None:
    """When so many collectives have come to their second step here; or to sending, in one step."""
    there, send = threading.Semaphore(0), _Flight.send

    def stay(flight: _Flight, load: _Load) -> None:
        if len(flight.prog.steps) == 1 or load.post.step:
            there.release()
            threading.Event().wait()
        send(flight, load)

    _Flight.send = stay  # type: ignore[method-assign]
    for _ in range(of):
        there.acquire()
    os._exit(7)


def outcomes(folder: str) -> None:
    """The calls of all groups are on their way at once when a rank dies in all of them."""
    rank, time = dist.get_rank(), timedelta(seconds=SECONDS)
    every = {name: (call, dist.new_group(timeout=time)) for name, call in calls().items()}
    os.environ["MINIDIST_CHECK"] = "0"  # the check would do the same before anything is sent
    if rank == DEAD:
        threading.Thread(target=die_in_the_middle, args=(len(every),)).start()
    dist.barrier()  # in the world's longer time: a late rank is not what this is about
    works = {name: call(group) for name, (call, group) in every.items()}
    said = {}
    for name, (work, tensor, want) in works.items():
        assert work is not None
        try:
            work.wait()
            said[name] = "right" if same(tensor, want) else f"wrong: {tensor}"
        except minidist.CommunicationError as error:
            said[name] = str(error)
    Path(folder, str(rank)).write_text(json.dumps(said))


def test_a_peer_that_dies_in_the_middle_of_each_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules["minidist.launch.launch"], "GRACE", 30
    )  # let all survivors report
    with pytest.raises(RankError, match=f"rank {DEAD} left with exit code 7"):
        launch(outcomes, RANKS, str(tmp_path), timeout=60)
    survivors = [rank for rank in range(RANKS) if rank != DEAD]
    said = {rank: json.loads((tmp_path / str(rank)).read_text()) for rank in survivors}
    names = {name for each in said.values() for name in each}
    assert len(names) == 11
    for name in names:
        results = {rank: said[rank][name] for rank in survivors}
        errors = {rank: text for rank, text in results.items() if text != "right"}
        for rank, text in errors.items():
            assert text.startswith(f"rank {rank}: "), (name, text)
            assert " step " in text
            assert " failed: " in text
        # Who has all it needs does not wait for those who have not; here nobody has.
        assert name != "all_reduce" or len(errors) == len(survivors), results
        assert any(f"rank {DEAD}" in text for text in errors.values()), (name, results)
