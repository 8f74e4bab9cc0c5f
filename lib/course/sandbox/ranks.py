"""A learner's function on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from course.sandbox.forbidden import without_torch
from course.verdict import Wrong, on_ranks
from minidist.collectives.runtime.executor import Sent
from minidist.comm.counted import Counted

T = TypeVar("T")

WORLDS = (3, 5)
REAL = f"on {WORLDS[0]} and on {WORLDS[1]} real processes"
AT_THE_END = {"barrier": " (The barrier is this grader's, when your function has returned.)"}


def on_worlds(
    work: Callable[[T], Any],
    cases: Sequence[T],
    *,
    instead: str = "",
    hints: Mapping[str, str] | None = None,
) -> Iterator[tuple[T, Sequence[Any]]]:
    """On 3 real ranks, then on 5: each case, and what work(case) returns on each of them.

    Args:
        work: asks the learner's function.
        cases: for all ranks.
        instead: what the function is to call in place of torch's collectives, which are refused;
            all of `work` may call them if this is "".
        hints: as `on_ranks` takes them.
    """
    for ranks in WORLDS:
        seen = on_ranks(_each, ranks, work, cases, instead, hints=hints)
        yield from zip(cases, zip(*seen, strict=True), strict=True)


def _each(work: Callable[[T], Any], cases: Sequence[T], instead: str) -> list[Any]:
    with without_torch(instead) if instead else nullcontext():
        return [work(case) for case in cases]


class Traffic(NamedTuple):
    """What one rank has sent."""

    nbytes: int
    messages: int

    @classmethod
    def of(cls, log: Sequence[Sent]) -> Traffic:
        """Of the messages that `minidist.record` has noted."""
        return cls(sum(message.nbytes for message in log), len(log))

    @classmethod
    def of_comm(cls, comm: Counted) -> Traffic:
        """Of all calls of a comm."""
        return cls(comm.bytes_sent, comm.messages_sent)


def check_traffic(
    sent: Sequence[Traffic],
    least: int,
    messages: int,
    *,
    so_far: str,
    advice: str = "",
    too_little: str = "Call minidist's collectives, by their default algorithm, and nothing else.",
    shared: bool = True,
) -> None:
    """Raise Wrong where the ranks send more than they need to, or less than the result takes.

    Args:
        sent: by each rank.
        least: the bytes that all ranks together must send.
        messages: that each rank may send.
        so_far: what is right: "the weights are right".
        advice: what to add where it is too much.
        too_little: what to add where it is too little, which means that it was not counted.
        shared: whether all ranks must send about as much.
    """
    total, ranks = sum(each.nbytes for each in sent), len(sent)
    busiest = max(range(ranks), key=lambda rank: sent[rank].nbytes)
    most, share = sent[busiest].nbytes, least / ranks
    count = max(each.messages for each in sent)
    if total < 0.99 * least:
        wrong = f"only {total:,} of the {least:,} bytes that it takes were counted. {too_little}"
    elif total > 1.01 * least:
        times = f"{total / least:.2g} times the {least:,} that are enough"
        wrong = f"together they send {total:,} bytes, {times}. {advice}"
    elif shared and most > 1.3 * share:
        enough = f"{share:,.0f} for each rank are enough"
        wrong = f"rank {busiest} sends {most:,} bytes, and {enough}. {advice}"
    elif count > messages:
        wrong = f"a rank sends {count} messages where {messages} are enough: make fewer calls."
    else:
        return
    raise Wrong(f"On {ranks} real processes {so_far}, but {wrong}".rstrip())


def exchange(tensor: torch.Tensor, to: int, source: int) -> torch.Tensor:
    """Send a 1-D tensor to rank `to` and return the one that rank `source` sends us."""
    length = torch.empty(1, dtype=torch.int64)
    _both(torch.tensor([len(tensor)]), to, length, source)
    received = tensor.new_empty(int(length))
    _both(tensor.contiguous(), to, received, source)
    return received


def _both(out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> None:
    ops = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def takes_memory(storage: StorageWeakRef) -> bool:
    """Whether what a weak reference points at is still there, and not resized to nothing."""
    if storage.expired():  # type: ignore[no-untyped-call]
        return False
    alive = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
    return alive is not None and alive.nbytes() > 0
