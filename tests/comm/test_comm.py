"""The seam that wrappers talk to: minidist's collectives, the backend's own, and either counted."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import launch
from minidist.comm.comm import Comm, Handle
from minidist.comm.counted import Counted, CountedCall
from minidist.comm.native import Native
from minidist.comm.ours import Ours
from tests.support.collectives import OPS, all_reduced, data, reduced, same

WORLDS = [1, 2, 3]
MAKERS: dict[str, Callable[[dist.ProcessGroup | None], Comm]] = {
    "ours": Ours,
    "ring": lambda group: Ours(group, algorithm="ring"),
    "shared": lambda group: Ours(group, algorithm="shared_memory"),
    "native": Native,
    "counted": lambda group: Counted(Ours(group)),
}


def done(handle: Handle | None, async_op: bool) -> bool:
    """Waits, twice, and looks at the span."""
    if handle is None or not async_op:
        return handle is None and not async_op
    handle.wait()
    handle.wait()
    return handle.span is None or handle.span[0] <= handle.span[1]


def wrong_calls(comm: Comm, ranks: list[int], async_op: bool) -> Iterator[str]:
    """Every call, against what one process computes; `ranks`: the group's, as data knows them."""
    me, n = comm.rank, len(ranks)
    native = isinstance(comm, Native)  # Gloo has no AVG, and adds the bytes of bools
    cases = [(torch.float32, op) for op in OPS if not (native and op == "AVG")]
    minidists = [(torch.int32, "AVG"), (torch.bool, "SUM"), (torch.bfloat16, "AVG")]
    for dtype, op in cases + ([(torch.uint8, "MAX")] if native else minidists):
        tensor = data(ranks[me], 7, dtype, op)
        fine = done(comm.all_reduce(tensor, OPS[op], async_op), async_op)
        if not (fine and same(tensor, reduced([data(r, 7, dtype, op) for r in ranks], op))):
            yield f"all_reduce {dtype} {op}"
        whole, part = data(ranks[me], (n, 5), dtype, op), torch.empty(5, dtype=dtype)
        fine = done(comm.reduce_scatter(part, whole, OPS[op], async_op), async_op)
        parts = reduced([data(r, (n, 5), dtype, op) for r in ranks], op)
        if not (fine and same(part, parts[me])):
            yield f"reduce_scatter {dtype} {op}"
    whole = torch.empty(n, 4)
    fine = done(comm.all_gather(whole, data(ranks[me], 4), async_op), async_op)
    if not (fine and same(whole, torch.stack([data(r, 4) for r in ranks]))):
        yield "all_gather"
    parts = [data(r, n * (r + 1)) for r in ranks]  # rank r's, of which each rank gets r + 1
    sizes = [r + 1 for r in ranks]
    found, sent = torch.empty(sum(sizes)), [ranks[me] + 1] * n
    fine = done(comm.all_to_all(found, parts[me], sizes, sent, async_op), async_op)
    if not (fine and same(found, torch.cat([each.view(n, -1)[me] for each in parts]))):
        yield "all_to_all"
    for root in range(n):
        tensor = data(ranks[me], (2, 3))
        fine = done(comm.broadcast(tensor, root, async_op), async_op)
        if not (fine and same(tensor, data(ranks[root], (2, 3)))):
            yield f"broadcast from {root}"


def every_comm(members: list[int], sub_group: bool) -> list[str]:
    """What is wrong between these ranks, whatever their order outside the group."""
    wrong = []
    group = dist.new_group(members, sort_ranks=False) if sub_group else None
    for name, make in MAKERS.items():
        if dist.get_rank() not in members:
            with pytest.raises(ValueError, match="rank 1: group: this rank is not a member of it"):
                make(group)
            continue
        comm = make(group)
        place = comm.group, comm.rank, comm.ranks
        right = group, members.index(dist.get_rank()), len(members)
        wrong += [] if place == right else [f"{name}: {place}"]
        for async_op in (False, True):
            wrong += [f"{name} {async_op}: {w}" for w in wrong_calls(comm, members, async_op)]
    return wrong


@pytest.mark.parametrize("ranks", WORLDS)
def test_every_call_of_every_comm_now_and_later(ranks: int) -> None:
    assert launch(every_comm, ranks, [*range(ranks)], False) == [[]] * ranks


def test_a_sub_group_numbers_its_own_ranks() -> None:
    assert launch(every_comm, 3, [2, 0], True) == [[]] * 3


def many_at_once() -> tuple[bool, bool, list[CountedCall], list[tuple[int, int]]]:
    """Handles of one comm waited for in another order; what is counted, and what is not."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counted = Counted(Ours(algorithm="ring"))
    tensors = [data(rank, 10 * size) for size in (1, 2, 3)]
    handles = [counted.all_reduce(tensor, async_op=True) for tensor in tensors]
    minidist.all_reduce(torch.ones(100))  # by the way, not through the comm
    for handle in reversed(handles):
        assert handle is not None
        handle.wait()
    right = all(same(t, all_reduced(ranks, len(t))) for t in tensors)
    spans = [handle.span for handle in handles if handle is not None]
    in_turn = all(a and b and a[1] <= b[0] for a, b in pairwise(spans))
    native = Counted(Native())
    handle = native.all_reduce(torch.ones(4), async_op=True)
    assert handle is not None
    handle.wait()
    calls, shared = counted.calls + native.calls, Counted(Ours(algorithm="shared_memory"))
    shared.all_gather(torch.empty(8), torch.ones(4))
    shared.reduce_scatter(torch.empty(4), torch.ones(8))
    shared.all_reduce(torch.ones(4))
    sent = [(each.bytes_sent, each.messages_sent) for each in (counted, native, shared)]
    counted.clear()
    sent.append((counted.bytes_sent, counted.messages_sent + len(counted.calls)))
    counted.broadcast(torch.ones(6), 1)
    return right, in_turn, calls, [*sent, (counted.bytes_sent, counted.messages_sent)]


def refused() -> list[str]:
    calls: list[Callable[[], object]] = [
        lambda: Ours([0, 1]),
        lambda: Native([0, 1]),
        lambda: minidist.all_reduce(torch.ones(1), group=[0, 1]),
        lambda: Native().all_reduce(torch.ones(3, 2).t(), async_op=True),
        lambda: Ours(algorithm=2.5),
    ]
    said = []
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        said.append(str(caught.value))
    handle = Ours(check=True).all_reduce(torch.ones(2 + dist.get_rank()), async_op=True)
    assert handle is not None
    with pytest.raises(minidist.MismatchError) as differs:
        handle.wait()
    return [*said, str(differs.value)]


def test_calls_in_flight_go_one_after_another_and_what_cannot_be_is_named() -> None:
    calls = [("all_reduce", 40), ("all_reduce", 80), ("all_reduce", 120), ("all_reduce", 16)]
    group = "group: expected a process group, as dist.new_group makes it, or None, got [0, 1]"
    sides = "rank 0 passed (2,); rank 1 passed (3,)"
    for rank, (told, said) in enumerate(launch(lambda: (many_at_once(), refused()), 2)):
        # Each rank sends halves of 240 bytes twice; to the other one, a broadcast's 24.
        sent = [(240, 6), (0, 0), (0, 0), (0, 0), (24 * rank, rank)]
        assert told == (True, True, calls, sent)
        ours, native, all_reduce, strided, algorithm, at_wait = said
        assert ours == native == f"rank {rank}: {group}"
        assert all_reduce == f"rank {rank}: all_reduce: {group}"
        assert strided == f"rank {rank}: tensor: expected a contiguous tensor; pass .contiguous()"
        assert algorithm.startswith(f"rank {rank}: algorithm must be one of double_tree, ")
        assert algorithm.endswith("got 2.5")
        assert at_wait == f"all_reduce: the ranks disagree on tensor's shape: {sides}"
