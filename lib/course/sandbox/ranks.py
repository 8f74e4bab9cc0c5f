"""A learner's function on real ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

import minidist
from course.verdict import Wrong
from minidist.collectives.runtime.executor import Sent

TIMEOUT = 15.0  # seconds until ranks that hang are killed
SAME_CALLS = " All ranks must make the same calls."
IN_ORDER = " All ranks must make the same calls, in the same order."
CALL = re.compile(r"^  (.+), (line \d+, in .+)$", re.M)


def on_ranks(
    function: Callable[..., Any],
    ranks: int,
    *args: object,
    timeout: float | None = None,
    hints: Mapping[str, str] | None = None,
) -> list[Any]:
    """As minidist.launch; what a learner's function raises there is a wrong answer.

    Args:
        function: what each rank runs; it calls the learner's function.
        ranks: the number of ranks.
        args: arguments of the function.
        timeout: seconds until ranks that have not ended are killed; `TIMEOUT` if None.
        hints: part of a failure's text → what to add to it.
    """
    try:
        return minidist.launch(function, ranks, *args, device="cpu", timeout=timeout or TIMEOUT)
    except minidist.RankError as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise error.__cause__ from error
        if isinstance(error.__cause__, Wrong):
            where = f"On rank {error.ranks[0]} of {ranks} " if ranks > 1 else ""
            raise Wrong(f"{where}{error.__cause__}") from error
        first = str(error).split("\n\n")[0].replace("\n", "; ")
        hints = hints or {"did not end": SAME_CALLS if ranks > 1 else ""}
        fitting = dict.fromkeys(hint for part, hint in hints.items() if part in first)
        where = f"On {ranks} real processes" if ranks > 1 else "In a process of its own"
        raise Wrong(f"{where} {first}{_learners_line(str(error))}.{''.join(fitting)}") from error


def _learners_line(error: str) -> str:
    """Where in the learner's code the odd rank raised or hung: " (line 3, in my_ring)", or ""."""
    first = [
        each
        for each in re.split(r"^(?:ranks? [\d, ]+:|which .+)?$", error, flags=re.M)[1:]
        if each.strip()
    ]
    calls = [call for file, call in CALL.findall("".join(first[:1])) if "/lib/course/" not in file]
    return f" ({calls[-1]})" if calls else ""


def compared(work: Callable[[], tuple[Any, ...]], ranks: int, complaint: str) -> list[Any]:
    """Run `work`, which returns (whether the result is right, *found); return what ranks found."""
    results = on_ranks(work, ranks)
    wrong = [rank for rank, (same, *_) in enumerate(results) if not same]
    if wrong:
        raise Wrong(f"On {ranks} real processes {complaint} on ranks {wrong}.")
    return [found for _, *found in results]


# ---- traffic ----


class Traffic(NamedTuple):
    """What one rank has sent."""

    nbytes: int
    messages: int

    @classmethod
    def of(cls, log: Sequence[Sent]) -> Traffic:
        """Of the messages that `minidist.record` or a counted comm has noted."""
        return cls(sum(message.nbytes for message in log), len(log))


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
    here = f"On {ranks} real processes {so_far}, but"
    if total < 0.99 * least:
        raise Wrong(
            f"{here} only {total:,} of the {least:,} bytes that it takes were counted. {too_little}"
        )
    if total > 1.01 * least:
        raise Wrong(
            f"{here} together they send {total:,} bytes, {total / least:.2g} times the "
            f"{least:,} that are enough. {advice}".rstrip()
        )
    if shared and most > 1.3 * share:
        raise Wrong(
            f"{here} rank {busiest} sends {most:,} bytes, and {share:,.0f} for each rank are "
            f"enough. {advice}".rstrip()
        )
    if (count := max(each.messages for each in sent)) > messages:
        raise Wrong(
            f"{here} a rank sends {count} messages where {messages} are enough: make fewer calls."
        )


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
