"""Memory that all ranks of a group on one host map, and a barrier in it.

[Note: nothing is left behind] A segment is a memfd: memory without a name in any file system, gone
with the last process that maps it, however that process ends. Peers open it as /proc/PID/fd/N.

[Note: digests at the barrier] A rank may leave a few bytes in its segment before a barrier, and
compare them with everybody's after it. There are two places for them in turn: a rank that passed
the next barrier knows that all have read the first.

[Note: the barrier] Ranks add 1 to one counter and sleep until all have. Both are calls of Linux's
futex(2): the addition is atomic, and what a rank wrote before it is seen by whoever has waited.
"""

import ctypes
import errno
import os
import platform
import secrets
import select
import struct
import sys
import time
from collections.abc import Callable
from mmap import PAGESIZE, mmap
from weakref import WeakKeyDictionary, finalize

import torch
import torch.distributed as dist

from minidist.collectives.runtime.group import members, wire_device
from minidist.collectives.runtime.notes import Note, exchange_notes
from minidist.errors import CommunicationError

BLOCK = 4 << 20  # bytes in a buffer: smaller means more barriers, larger leaves the cache
BUFFERS = 3
SIZE = PAGESIZE + BUFFERS * BLOCK  # bytes of a segment
DIGEST = 16  # bytes that are compared at a barrier
LOOK = struct.pack("ll", 0, 200_000_000)  # s, ns between looks at whether the peers are alive

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)  # the system call's number
_WAIT, _WAKE, _WAKE_OP = 0, 1, 5
_ADD_ONE = 1 << 28 | 1 << 12


class SharedSegments:
    """The segments of a group's ranks, mapped by this rank; made by all of them, or by none."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.peers = [r for r in range(self.ranks) if r != self.rank]
        self._names = [str(rank) for rank in dist.get_process_group_ranks(group)]
        options = group._get_backend(torch.device("cpu")).options
        self._seconds = options._timeout.total_seconds()  # as long as messages may take
        self._maps, ends = _map_all(group, self.rank)
        self._exits = select.poll()
        for end in ends:
            self._exits.register(end, select.POLLIN)
            finalize(self, os.close, end)
        self._memory = [torch.frombuffer(each, dtype=torch.uint8) for each in self._maps]
        self._counter = _Counter(self._maps[0], self.ranks)
        self._barriers = 0
        self._comparing: tuple[bytes, Callable[[], None]] | None = None
        self._broken = ""

    def views(self, dtype: torch.dtype, numel: int) -> list[torch.Tensor]:
        start = PAGESIZE + self._barriers % BUFFERS * BLOCK
        stop = start + numel * dtype.itemsize
        return [memory[start:stop].view(dtype) for memory in self._memory]

    def compare(self, digest: bytes, differ: Callable[[], None]) -> None:
        """At the next barrier call `differ` unless all ranks have left the same digest there."""
        self._comparing = digest, differ

    def barrier(self) -> None:
        """Wait until all ranks have come here; what they wrote before is visible then.

        Raises CommunicationError if a rank is gone, or has not come in the group's time.
        """
        if self._broken:
            raise CommunicationError(self._broken)
        comparing, self._comparing = self._comparing, None
        self._barriers += 1
        start = PAGESIZE - (1 + self._barriers % 2) * DIGEST
        place = slice(start, start + DIGEST)
        if comparing:
            self._maps[self.rank][place] = comparing[0]  # [Note: digests at the barrier]
        self._counter.arrive(self.rank, self._barriers)
        end = time.monotonic() + self._seconds
        while not self._counter.reached(self._barriers):
            self._counter.sleep(self._barriers)
            if self._counter.reached(self._barriers):
                break
            gone, late = self._exits.poll(0), time.monotonic() > end
            if (gone or late) and not self._counter.reached(self._barriers):
                why = "a rank is gone" if gone else f"waited for {self._seconds:g} s"
                names = [self._names[r] for r in self._counter.late(self._barriers)]
                self._broken = (
                    f"rank {self._names[self.rank]}: shared memory, barrier {self._barriers}: "
                    f"{why}; not there: rank {', '.join(names)}"
                )
                raise CommunicationError(self._broken)
        if comparing and any(each[place] != comparing[0] for each in self._maps):
            comparing[1]()


_libc = ctypes.CDLL(None, use_errno=True)


class _Counter:
    def __init__(self, memory: mmap, ranks: int) -> None:
        self._ranks = ranks
        self._count = ctypes.c_uint32.from_buffer(memory)
        self._seen = (ctypes.c_uint32 * ranks).from_buffer(memory, 64)  # for error messages alone
        self._at = ctypes.addressof(self._count)

    def arrive(self, rank: int, barrier: int) -> None:
        self._seen[rank] = barrier & 0xFFFFFFFF
        nobody = self._at + 4  # FUTEX_WAKE_OP wakes one there too
        self._futex(nobody, _WAKE_OP, 1, None, self._at, _ADD_ONE)
        if self.reached(barrier):
            self._futex(self._at, _WAKE, 0x7FFFFFFF, None, 0, 0)

    def reached(self, barrier: int) -> bool:
        """True if all ranks have come to this barrier; the count is modulo 2**32."""
        missing = (barrier * self._ranks - self._count.value) & 0xFFFFFFFF
        return missing == 0 or missing > self._ranks

    def sleep(self, barrier: int) -> None:
        """Sleep until a rank's arrival completes the barrier, but no longer than `LOOK`."""
        seen = self._count.value
        if not self.reached(barrier):
            self._futex(self._at, _WAIT, seen, LOOK, 0, 0)

    def late(self, barrier: int) -> list[int]:
        return [r for r, seen in enumerate(self._seen) if (barrier - seen) & 0xFFFFFFFF == 1]

    def _futex(
        self, at: int, what: int, value: int, limit: bytes | None, other: int, op: int
    ) -> None:
        done = _libc.syscall(
            _FUTEX, ctypes.c_void_p(at), what, value, limit, ctypes.c_void_p(other), op
        )
        problem = ctypes.get_errno() if done < 0 else 0
        if problem not in (0, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(problem, os.strerror(problem))


_known: WeakKeyDictionary[dist.ProcessGroup, SharedSegments | str] = WeakKeyDictionary()


def shared_segments(group: dist.ProcessGroup | None) -> SharedSegments:
    """The segments of a group; the first call for a group makes them, so all ranks must be in it.

    Raises ValueError, on every rank, if the ranks do not share one host's memory.
    """
    key = members(group)
    if key not in _known:
        try:
            _known[key] = SharedSegments(key)
        except ValueError as error:
            _known[key] = str(error)
    segments = _known[key]
    if isinstance(segments, str):
        raise ValueError(segments)
    return segments


def shared_or_none(group: dist.ProcessGroup | None) -> SharedSegments | None:
    """The same; None if the ranks share no memory, or send from GPUs alone."""
    try:
        return shared_segments(group) if wire_device(group).type == "cpu" else None
    except ValueError:  # another host, or a system without futexes
        return None


def _map_all(group: dist.ProcessGroup, rank: int) -> tuple[list[mmap], list[int]]:
    name, fd = f"minidist-{secrets.token_hex(8)}", -1
    offer: Note = {}
    if _FUTEX and sys.platform == "linux":
        fd = os.memfd_create(name)
        os.ftruncate(fd, SIZE)
        offer = {"name": name, "pid": str(os.getpid()), "fd": str(fd)}
    maps: list[mmap] = []
    ends: list[int] = []
    problem = ""
    try:
        for peer, theirs in enumerate(exchange_notes(offer, group)):
            maps.append(_map(theirs))
            if peer != rank:
                ends.append(os.pidfd_open(int(theirs["pid"])))
    except (OSError, ValueError, KeyError) as error:
        other = dist.get_process_group_ranks(group)[len(maps)]
        problem = f"cannot map the memory of rank {other}: {error!r}"
    answers = exchange_notes({"problem": problem}, group)
    if fd >= 0:
        os.close(fd)
    for answer in answers:
        if answer["problem"]:
            for end in ends:
                os.close(end)
            raise ValueError(f"algorithm shared_memory: {answer['problem']}")
    return maps, ends


def _map(offer: Note) -> mmap:
    path = f"/proc/{offer['pid']}/fd/{offer['fd']}"
    if not os.readlink(path).startswith(f"/memfd:{offer['name']}"):
        raise ValueError(f"{path} is another host's")
    with open(path, "r+b", buffering=0) as file:
        return mmap(file.fileno(), SIZE)
