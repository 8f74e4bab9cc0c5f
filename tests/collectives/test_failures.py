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

Call = Callable[[dist.ProcessGroup], Work | None]


def calls() -> dict[str, tuple[Call, torch.Tensor, torch.Tensor]]:
    """Each collective, asynchronously; what is written, and what it must be then.

    Together they need every rank in every role.
    """
    rank, everybody = dist.get_rank(), range(RANKS)
    mine, parts = data(rank, 1000), [data(r, 1000) for r in everybody]
    rows, sums = torch.stack(parts), reduced(parts)
    to_me = torch.cat([data(r, 1000).view(RANKS, 250)[rank] for r in everybody])
    blocks, asked = list(mine.view(RANKS, 250)), {"async_op": True}
    bcast, total, every, shift = (mine.clone() for _ in range(4))
    gathered, collected = (torch.zeros(RANKS, 1000) for _ in range(2))
    dealt, sliced, listed, single = (torch.zeros(n) for n in (1000, 250, 1000, 1000))
    slots = list(gathered) if rank == 0 else None
    hand = parts if rank == DEAD else None
    out, into = list(listed.view(RANKS, 250)), list(collected)
    lib = minidist
    return {
        "broadcast": (lambda g: lib.broadcast(bcast, 0, g, **asked), bcast, parts[0]),
        "reduce": (
            lambda g: lib.reduce(total, 0, group=g, **asked),
            total,
            sums if rank == 0 else mine,
        ),
        "all_reduce": (lambda g: lib.all_reduce(every, group=g, **asked), every, sums),
        "gather": (
            lambda g: lib.gather(mine, slots, 0, g, **asked),
            gathered,
            rows if rank == 0 else torch.zeros(RANKS, 1000),
        ),
        "scatter": (lambda g: lib.scatter(dealt, hand, DEAD, g, **asked), dealt, parts[rank]),
        "all_gather": (lambda g: lib.all_gather(into, mine, g, **asked), collected, rows),
        "reduce_scatter": (
            lambda g: lib.reduce_scatter(sliced, blocks, group=g, **asked),
            sliced,
            sums.view(RANKS, 250)[rank],
        ),
        "all_to_all": (lambda g: lib.all_to_all(out, blocks, g, **asked), listed, to_me),
        "all_to_all_single": (
            lambda g: lib.all_to_all_single(single, mine, group=g, **asked),
            single,
            to_me,
        ),
        "ring_shift": (lambda g: lib.ring_shift(shift, 1, g, **asked), shift, parts[rank - 1]),
        "barrier": (lambda g: lib.barrier(g, **asked), mine, mine),
    }


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
    every = {name: (*call, dist.new_group(timeout=time)) for name, call in calls().items()}
    os.environ["MINIDIST_CHECK"] = "0"  # the check would do the same before anything is sent
    if rank == DEAD:
        threading.Thread(target=die_in_the_middle, args=(len(every),)).start()
    dist.barrier()  # in the world's longer time: a late rank is not what this is about
    works = {name: call(group) for name, (call, *_, group) in every.items()}
    said = {}
    for name, (_, tensor, want, _) in every.items():
        work = works[name]
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
    monkeypatch.setattr(sys.modules["minidist.launch.launch"], "GRACE", 30)  # all are to report
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
