"""Collectives through memory that the ranks of one host share; see also `test_values`."""

import ctypes
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from mmap import PAGESIZE, mmap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.collectives.shared_memory import collectives as in_memory
from minidist.collectives.shared_memory import segments
from minidist.collectives.shared_memory.collectives import (
    shared_all_gather,
    shared_all_reduce,
    shared_reduce_scatter,
)
from minidist.errors import CommunicationError
from tests.support.collectives import bytes_of, same
from tests.support.processes import living, noted, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")


def sums() -> list[bytes]:
    """The bits of sums that depend on the order of additions."""
    dice = torch.Generator().manual_seed(dist.get_rank())
    mine = [torch.rand(size, generator=dice) for size in (100_003, 1003)]
    for numbers in mine:
        shared_all_reduce(numbers, torch.Tensor.add_, None)
    part = torch.empty(2_200_000)  # of more than two blocks, however they are cut
    whole = torch.ones(dist.get_world_size() * len(part))
    shared_reduce_scatter(part, whole, torch.Tensor.add_, None)
    assert bool((part == dist.get_world_size()).all())
    return [bytes_of(numbers) for numbers in mine]


@pytest.mark.parametrize("ranks", [2, 5])
def test_sums_in_blocks_of_real_size_have_the_same_bits_on_every_rank(ranks: int) -> None:
    first, *others = launch(sums, ranks)
    assert others == [first] * (ranks - 1)


def many_calls_without_a_pause() -> int:
    """Ranks that run ahead must not overwrite what others still read."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    in_memory.BLOCK, in_memory.SMALL = 64, 8  # many blocks
    wrong = 0
    for turn in range(600):
        size = (3, 40, 16, 100)[turn % 4]
        mine = torch.full((size,), float(rank + turn))
        if rank == turn % ranks:
            time.sleep(0.0005 * (turn % 3))
        if turn % 3 == 2:
            whole = torch.empty(size * ranks)
            shared_all_gather(whole, mine, None)
            wrong += not same(whole.view(ranks, size)[:, 0], torch.arange(ranks) + float(turn))
        else:
            shared_all_reduce(mine, torch.Tensor.add_, None)
            total = float(ranks * turn + ranks * (ranks - 1) // 2)
            wrong += not same(mine, torch.full((size,), total))
    return wrong


@pytest.mark.parametrize("ranks", [2, 5])
def test_calls_follow_each_other_without_mixing(ranks: int) -> None:
    assert launch(many_calls_without_a_pause, ranks) == [0] * ranks


def test_the_count_goes_on_past_32_bits() -> None:
    memory = mmap(-1, PAGESIZE)
    counter = segments._Counter(memory, 3)
    barrier = (1 << 32) // 3 + 1  # 3 of these and the count has gone round
    ctypes.c_uint32.from_buffer(memory).value = 3 * (barrier - 1)
    counter._seen[:] = [barrier - 1] * 3
    for rank in range(3):
        assert not counter.reached(barrier)
        assert counter.late(barrier) == list(range(rank, 3))
        counter.arrive(rank, barrier)
    assert counter.reached(barrier)
    assert counter.late(barrier) == []
    assert counter.reached(barrier - 1), "a rank that looks late sees that the next has begun"
    assert not counter.reached(barrier + 1)


def ranks_of_threads(names: list[str], seconds: float = 30.0) -> list[segments.SharedSegments]:
    """The segments of some ranks, all in this process."""
    maps = [mmap(-1, segments.SIZE) for _ in names]
    made = []
    for rank, _ in enumerate(names):
        each = object.__new__(segments.SharedSegments)
        each.rank, each.ranks = rank, len(names)
        each.peers = [r for r in range(len(names)) if r != rank]
        each._names, each._seconds, each._maps = names, seconds, maps
        each._exits = select.poll()
        each._memory = [torch.frombuffer(one, dtype=torch.uint8) for one in maps]
        each._counter = segments._Counter(maps[0], len(names))
        each._barriers, each._comparing, each._broken = 0, None, ""
        made.append(each)
    return made


def together(*calls: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(calls)) as threads:
        for done in [threads.submit(call) for call in calls]:
            done.result()


@pytest.mark.parametrize("odd", [None, 0, 1, 2])
def test_a_digest_is_compared_with_every_rank_s_at_one_barrier(odd: int | None) -> None:
    ranks = ranks_of_threads(["0", "1", "2"])
    found: list[int] = []
    for number, each in enumerate(ranks):
        digest = bytes([number == odd]) * segments.DIGEST
        each.compare(digest, partial(found.append, number))
    together(*(each.barrier for each in ranks))
    assert sorted(found) == ([] if odd is None else [0, 1, 2])
    together(*(each.barrier for each in ranks))
    assert len(found) == (0 if odd is None else 3), "the next barrier compares nothing"


def test_a_rank_that_does_not_come_is_named_as_outside_the_group_and_stays_so() -> None:
    first, _, third = ranks_of_threads(["3", "5", "8"], seconds=0.01)
    said = []
    for each in (first, third, first):
        with pytest.raises(CommunicationError) as caught:
            each.barrier()
        said.append(str(caught.value))
    why = "shared memory, barrier 1: waited for 0.01 s; not there: rank"
    assert said == [f"rank 3: {why} 5, 8", f"rank 8: {why} 5", f"rank 3: {why} 5, 8"]


class Late:
    """A counter whose last rank comes while its end is heard of."""

    def __init__(self, answers: list[bool]) -> None:
        self.answers = answers
        self.arrive = self.sleep = lambda *_: None

    def reached(self, barrier: int) -> bool:
        return self.answers.pop(0)

    def late(self, barrier: int) -> list[int]:
        return [1]


@pytest.mark.parametrize(("came", "fails"), [(True, False), (False, True)])
def test_a_rank_that_has_come_and_then_ends_is_not_missed(came: bool, fails: bool) -> None:
    each, _ = ranks_of_threads(["0", "1"])
    each._counter = Late([False, False, came, came])  # type: ignore[assignment]
    with open("/dev/null") as gone:
        each._exits = SimpleNamespace(poll=lambda _: [(gone.fileno(), 1)])  # type: ignore[assignment]
        with pytest.raises(CommunicationError, match="a rank is gone") if fails else nullcontext():
            each.barrier()


def test_memory_of_another_process_with_the_same_number_is_not_mapped() -> None:
    fd = os.memfd_create("minidist-mine")
    os.ftruncate(fd, segments.SIZE)
    offer = {"pid": str(os.getpid()), "fd": str(fd)}
    assert len(segments._map(offer | {"name": "minidist-mine"})) == segments.SIZE
    with pytest.raises(ValueError, match="is another host's"):
        segments._map(offer | {"name": "minidist-theirs"})
    os.close(fd)


USES_IT = """
import os, sys, time, torch, minidist
from minidist.collectives.shared_memory.collectives import shared_all_reduce
from tests.support.processes import note

def work():
    shared_all_reduce(torch.ones(1 << 20), torch.Tensor.add_, None)
    note(sys.argv[1], os.getpid())
    time.sleep(1000)

if __name__ == "__main__":
    minidist.launch(work, 2, timeout=300)
"""


def mapped_names(maps: Path) -> set[str]:
    """Names of this library's segments that a process has mapped."""
    try:
        return set(re.findall(r"memfd:(minidist-\w+)", maps.read_text()))
    except OSError:  # it has ended
        return set()


def test_nothing_is_left_after_sigkill(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen([sys.executable, "-c", USES_IT, tmp_path], env=environment)
    assert wait_until(lambda: len(noted(tmp_path)) == 2)
    names = mapped_names(Path(f"/proc/{min(noted(tmp_path))}/maps"))
    assert len(names) == 2, "one for each rank"
    launcher.kill()
    launcher.wait(60)
    assert living(noted(tmp_path)) == set()
    assert not any(names & mapped_names(maps) for maps in Path("/proc").glob("[0-9]*/maps"))
    assert not any("minidist" in name for name in os.listdir("/dev/shm"))
