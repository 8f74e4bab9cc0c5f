"""A learner's function on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

import minidist
from course.graders.verdict import Wrong

SAME_CALLS = " All ranks must make the same calls."
IN_ORDER = " All ranks must make the same calls, in the same order."


def on_ranks(
    function: Callable[..., Any],
    ranks: int,
    *args: object,
    timeout: float = 20,
    hints: Mapping[str, str] | None = None,
) -> list[Any]:
    """As minidist.launch; what a learner's function raises there is a wrong answer.

    Args:
        function: what each rank runs; it calls the learner's function.
        ranks: the number of ranks.
        args: arguments of the function.
        timeout: seconds until ranks that wait for each other are killed.
        hints: part of a failure's text → what to add to it.
    """
    try:
        return minidist.launch(function, ranks, *args, device="cpu", timeout=timeout)
    except minidist.RankError as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise error.__cause__ from error
        if isinstance(error.__cause__, Wrong):
            raise Wrong(f"On rank {error.ranks[0]} {error.__cause__}") from error
        first = str(error).split("\n\n")[0].replace("\n", "; ")
        hints = hints or {"did not end": SAME_CALLS}
        fitting = dict.fromkeys(hint for part, hint in hints.items() if part in first)
        raise Wrong(f"On {ranks} real processes {first}.{''.join(fitting)}") from error


def compared(work: Callable[[], tuple[Any, ...]], ranks: int, complaint: str) -> list[Any]:
    """Run `work`, which returns (whether the result is right, *found); return what ranks found."""
    results = on_ranks(work, ranks)
    wrong = [rank for rank, (same, *_) in enumerate(results) if not same]
    if wrong:
        raise Wrong(f"On {ranks} real processes {complaint} on ranks {wrong}.")
    return [found for _, *found in results]


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
