"""Try every collective of a library on tensors that somebody made."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import minidist

__all__ = ["tried"]

Make = Callable[[int], torch.Tensor]  # a tensor filled according to a number
Attempts = dict[str, Any]  # call → what it wrote, as lists, or why it did not

NAMES = (
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
)


def tried(library: Any, make: Make, ranks: int = 2) -> dict[str, str]:
    """Make each call on real ranks: its name → "right", "wrong, and no error" or what went wrong.

    Args:
        library: `minidist`, or `torch.distributed`, which runs over Gloo here.
        make: makes a tensor whose numbers depend on its argument; the calls read and write such.
        ranks: number of ranks.
    """
    right = minidist.launch(_attempts, ranks, minidist, lambda value: make(value).contiguous())
    try:
        found = minidist.launch(_attempts, ranks, library, make, timeout=20)
    except minidist.RankError:  # one call broke the ranks: each on ranks of its own
        found = [{} for _ in range(ranks)]
        for name in NAMES:
            for held, result in zip(found, _alone(name, library, make, ranks), strict=True):
                held |= result
    return {name: _verdict([a[name] for a in found], [a[name] for a in right]) for name in NAMES}


def _alone(name: str, library: Any, make: Make, ranks: int) -> list[Attempts]:
    try:
        return minidist.launch(_attempts, ranks, library, make, [name], timeout=20)
    except minidist.RankError as error:
        return [{name: f"failed: {str(error).splitlines()[0]}"}] * ranks


def _verdict(found: list[Any], right: list[Any]) -> str:
    errors = [each for each in found if isinstance(each, str)]
    if errors:
        return str(errors[0])
    return "right" if found == right else "wrong, and no error"


def _attempts(library: Any, make: Make, names: tuple[str, ...] = NAMES) -> Attempts:
    """What each call writes on this rank."""
    results: Attempts = {}
    for name in names:
        call, written = _calls(library, make)[name]
        try:
            call()
            results[name] = [tensor.tolist() for tensor in written]
        except (RuntimeError, ValueError) as error:
            results[name] = f"refused: {type(error).__name__}"
    return results


def _calls(library: Any, make: Make) -> dict[str, tuple[Callable[[], object], list[torch.Tensor]]]:
    """Each call on new tensors, and the tensors that it writes on this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    root, one, out = rank == 0, make(10 * rank), make(-1)
    ins = [make(10 * rank + 3 * d + 1) for d in range(ranks)]
    outs = [make(-1) for _ in range(ranks)]
    return {
        "broadcast": (lambda: library.broadcast(one, 0), [one]),
        "reduce": (lambda: library.reduce(one, 0), [one] if root else []),
        "scatter": (lambda: library.scatter(out, ins if root else None, 0), [out]),
        "gather": (lambda: library.gather(one, outs if root else None, 0), outs),
        "all_gather": (lambda: library.all_gather(outs, one), outs),
        "reduce_scatter": (lambda: library.reduce_scatter(out, ins), [out]),
        "all_reduce": (lambda: library.all_reduce(one), [one]),
        "all_to_all": (lambda: library.all_to_all(outs, ins), outs),
    }
