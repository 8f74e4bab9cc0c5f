"""Collectives through memory that the ranks of one host share."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from itertools import product
from mmap import PAGESIZE, mmap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import CommunicationError, launch
from minidist.collectives.runtime.reduction import reduction
from minidist.collectives.shared_memory import collectives as in_memory
from minidist.collectives.shared_memory import segments
from minidist.collectives.shared_memory.collectives import (
    shared_all_gather,
    shared_all_reduce,
    shared_reduce_scatter,
)
from tests.support.collectives import DTYPES, NO_MEANING, OPS, all_reduced, bytes_of, data, same

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")
WORLDS = [1, 2, 3, 4, 5, 8]


def sizes(ranks: int) -> list[int]:
    """Around what a rank has, and around what fits a block of 64 bytes."""
    return sorted({1, ranks - 1, ranks, ranks + 1, 7, 15, 16, 17, 33, 1000} - {0})


def small_blocks() -> None:
    """Make the calls that follow take many blocks."""
    in_memory.BLOCK, in_memory.SMALL = 64, 8


def every_all_reduce() -> list[str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for small in (False, True):
        if small:
            small_blocks()
        kinds = [(dtype, op) for dtype in DTYPES for op in OPS if (dtype, op) not in NO_MEANING]
        for (dtype, op), size in product(kinds, sizes(ranks)):
            reduce, finish = reduction(OPS[op], dtype, ranks)
            mine = data(rank, size, dtype, op)
            shared_all_reduce(mine, reduce, None)
            finish(mine)
            if not same(mine, all_reduced(ranks, size, dtype, op)):
                wrong.append(f"{op} of {size} {dtype}, small blocks: {small}")
    for size, dtype in product(sizes(ranks), (torch.float32, torch.bfloat16, torch.int64)):
        want = all_reduced(ranks, size * ranks, dtype).view(ranks, size)
        mine, part = data(rank, size * ranks, dtype), torch.empty(size, dtype=dtype)
        shared_reduce_scatter(part, mine, torch.Tensor.add_, None)
        if not same(part, want[rank]) or not same(mine, data(rank, size * ranks, dtype)):
            wrong.append(f"reduce-scatter of {size} {dtype}")
        whole = torch.empty(size * ranks, dtype=dtype)
        shared_all_gather(whole, part, None)
        if not same(whole, want.reshape(-1)):
            wrong.append(f"all-gather of {size} {dtype}")
    return wrong


@pytest.mark.parametrize("ranks", WORLDS)
def test_all_reduce_of_any_size_dtype_and_op(ranks: int) -> None:
    assert launch(every_all_reduce, ranks) == [[]] * ranks


def many_calls_without_a_pause() -> int:
    """Ranks that run ahead must not overwrite what others still read."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    small_blocks()
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


def uneven_floats() -> bytes:
    mine = torch.rand(100_003, generator=torch.Generator().manual_seed(dist.get_rank()))
    shared_all_reduce(mine, torch.Tensor.add_, None)
    in_memory.SMALL = 1 << 30
    small = torch.rand(1003, generator=torch.Generator().manual_seed(dist.get_rank()))
    shared_all_reduce(small, torch.Tensor.add_, None)
    return bytes_of(mine) + bytes_of(small)


def test_every_rank_has_the_same_bits() -> None:
    assert len(set(launch(uneven_floats, 5))) == 1


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


def one_stays_away(away: int) -> str:
    minidist.all_reduce(torch.ones(1))
    segments.shared_segments(None)._seconds = 2.0
    if dist.get_rank() == away:
        time.sleep(5)
        return "away"
    with pytest.raises(CommunicationError) as caught:
        shared_all_reduce(torch.ones(10), torch.Tensor.add_, None)
    with pytest.raises(CommunicationError, match=re.escape(str(caught.value))):
        shared_all_reduce(torch.ones(10), torch.Tensor.add_, None)
    return str(caught.value)


def test_a_rank_that_does_not_come_is_named() -> None:
    said = launch(one_stays_away, 3, 1)
    assert said[1] == "away"
    for rank in (0, 2):
        assert said[rank] == (
            f"rank {rank}: shared memory, barrier 2: waited for 2 s; not there: rank 1"
        )


def not_on_this_host() -> str:
    if dist.get_rank() == 1:
        segments._FUTEX = 0
    with pytest.raises(ValueError, match="cannot map the memory of rank 1") as caught:
        shared_all_reduce(torch.ones(10), torch.Tensor.add_, None)
    return str(caught.value)


def test_ranks_that_share_no_memory_say_so_on_every_rank() -> None:
    assert len(set(launch(not_on_this_host, 3))) == 1


USES_IT = """
import os, time, torch, minidist
from minidist.collectives.shared_memory.collectives import shared_all_reduce

def work():
    shared_all_reduce(torch.ones(1 << 20), torch.Tensor.add_, None)
    print(os.getpid(), flush=True)
    open(os.environ["NOTE"] + "." + os.environ["RANK"], "w").write(str(os.getpid()))
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


@pytest.mark.parametrize("target", ["launcher", "rank"])
def test_nothing_is_left_after_sigkill(target: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(USES_IT)
    environment = {**os.environ, "NOTE": str(tmp_path / "pid")}
    done = subprocess.Popen([sys.executable, script], env=environment, stderr=subprocess.DEVNULL)
    notes = [tmp_path / f"pid.{rank}" for rank in range(2)]
    deadline = time.monotonic() + 60
    while not all(note.exists() and note.read_text() for note in notes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = [int(note.read_text()) for note in notes]
    mapped = [Path(f"/proc/{pid}/maps") for pid in pids]
    names = mapped_names(mapped[0])
    assert len(names) == 2, "one for each rank"
    os.kill(done.pid if target == "launcher" else pids[0], signal.SIGKILL)
    done.wait(60)
    deadline = time.monotonic() + 30
    while any(each.exists() for each in mapped) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(names & mapped_names(maps) for maps in Path("/proc").glob("[0-9]*/maps"))
    assert not any("minidist" in name for name in os.listdir("/dev/shm"))
