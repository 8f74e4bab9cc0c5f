"""Whether a call keeps its place in the stream on which it was made, and whether the host waits.

On a side stream: something slow, then a change of the tensor, then the collective. Its result must
show the change. (The CPU has no streams: what is queued there is done at once.) Over NCCL the call
should come back while the stream is still busy; that is recorded, as it is not right or wrong.
"""

import time
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist

import minidist
from benchmarks.harness.record import Row, worst_of_ranks
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup

CYCLES = 100_000_000  # of the GPU's clock: 50 ms at 2 GHz
NUMEL = 1 << 20


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for synchronous calls and one for asynchronous ones.

    Raises:
        AssertionError: after them, if a result does not show what was queued before the call.
    """
    of_ranks = setup.launch(on_rank, timeout=clock.left())
    rows = [worst_of_ranks(each) for each in zip(*of_ranks, strict=True)]
    yield from rows
    assert all(row["right"] for row in rows), "a result does not show what was queued before"


def on_rank() -> list[Row]:
    """On each rank."""
    _late_change(False)  # connects
    return [_late_change(async_op) for async_op in (False, True)]


def _late_change(async_op: bool) -> Row:
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), minidist.device()
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    with torch.cuda.stream(side) if side else nullcontext():
        tensor = torch.zeros(NUMEL, device=device)
        if side:
            torch.cuda._sleep(CYCLES)
        tensor.fill_(rank + 1)
        start = time.perf_counter()
        work = minidist.all_reduce(tensor, async_op=async_op, check=False)
        called = time.perf_counter()
        if work:
            work.wait()
        waited, busy = time.perf_counter(), side is not None and not side.query()
        want = torch.full_like(tensor, ranks * (ranks + 1) / 2)
        right = bool(torch.equal(tensor, want))  # the host waits here
    done = time.perf_counter()
    return {
        "call": "asynchronous" if async_op else "synchronous",
        "right": right,
        "back_while_stream_is_busy": busy,
        "call_ms": 1e3 * (called - start),
        "wait_ms": 1e3 * (waited - called),
        "stream_ms": 1e3 * (done - start),
    }
