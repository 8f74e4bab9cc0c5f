"""A peer that dies in the middle of a collective: an error that says where, or a right result."""

import json
import os
import re
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import minidist
from benchmarks.checks.collectives import CALLS, Tensors, Variant
from minidist import RankError, launch
from minidist.collectives.runtime.executor import _Flight, _Load

RANKS, DEAD = 4, 2
SECONDS = 5  # a group's time


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
    groups = {name: dist.new_group(timeout=time) for name in CALLS}
    os.environ["MINIDIST_CHECK"] = "0"  # the check would do the same before anything is sent
    if rank == DEAD:
        threading.Thread(target=die_in_the_middle, args=(len(CALLS),)).start()
    dist.barrier()  # in the world's longer time: a late rank is not what this is about
    flying = {}
    for name, group in groups.items():
        tensors = Tensors(Variant(250, torch.float32, False, True))
        tensors.root = DEAD if name == "scatter" else 0
        given = CALLS[name](tensors)
        flying[name] = tensors, getattr(minidist, name)(*given, group=group, async_op=True)
    said = {}
    for name, (tensors, work) in flying.items():
        try:
            work.wait()
            said[name] = "right" if tensors.right() else "wrong"
        except minidist.CommunicationError as error:
            said[name] = str(error)
    Path(folder, str(rank)).write_text(json.dumps(said))


def test_a_peer_that_dies_in_the_middle_of_each_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["minidist.launch.launch"], "GRACE", 30)  # all are to report
    with pytest.raises(RankError, match=f"rank {DEAD} left with exit code 7"):
        launch(outcomes, RANKS, str(tmp_path), timeout=200)
    survivors = [rank for rank in range(RANKS) if rank != DEAD]
    said = {rank: json.loads((tmp_path / str(rank)).read_text()) for rank in survivors}
    names = {name for each in said.values() for name in each}
    assert names == set(CALLS)
    for name in names:
        results = {rank: said[rank][name] for rank in survivors}
        errors = {rank: text for rank, text in results.items() if text != "right"}
        for rank, text in errors.items():
            where = rf"rank {rank}: [^:]+, step \d+ of \d+: a message (to|from) rank .* failed: "
            assert re.match(where, text), (name, text)
        # Who has all it needs does not wait for those who have not; here nobody has.
        assert name != "all_reduce" or len(errors) == len(survivors), results
        assert any(f"rank {DEAD}" in text for text in errors.values()), (name, results)
