"""Try every collective of a library on tensors that somebody made."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import minidist

Make = Callable[[int], torch.Tensor]  # a tensor filled according to a number

NAMES = ["broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter"]
NAMES += ["all_reduce", "all_to_all"]
RANKS = 2


def tried(library: Any, make: Make) -> dict[str, str]:
    """Make each call on real ranks: its name → "right", "wrong, and no error" or what went wrong.

    `library`: `minidist`, or `torch.distributed`, which runs over Gloo here; `make`: makes a tensor
    whose numbers depend on its argument. The calls read and write such tensors.
    """
    right = _attempts(minidist, lambda value: make(value).contiguous(), NAMES)
    try:
        found = _attempts(library, make, NAMES)
    except minidist.RankError:  # one call broke the ranks: each on ranks of its own
        found = {name: _alone(library, make, name) for name in NAMES}
    return {name: _verdict(found[name], right[name]) for name in NAMES}


def _alone(library: Any, make: Make, name: str) -> list[Any]:
    try:
        return _attempts(library, make, [name])[name]
    except minidist.RankError as error:
        return [f"failed: {str(error).splitlines()[0]}"]


def _verdict(found: list[Any], right: list[Any]) -> str:
    errors = [each for each in found if isinstance(each, str)]
    if errors:
        return str(errors[0])
    return "right" if found == right else "wrong, and no error"


def _attempts(library: Any, make: Make, names: list[str]) -> dict[str, list[Any]]:
    """Results of each call by rank, as lists, or why it was refused."""

    def attempt() -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name in names:
            call, written = _calls(library, make)[name]
            try:
                call()
                results[name] = [tensor.tolist() for tensor in written]
            except (RuntimeError, ValueError) as error:
                results[name] = f"refused: {type(error).__name__}"
        return results

    of_ranks = minidist.launch(attempt, RANKS, timeout=20)
    return {name: [each[name] for each in of_ranks] for name in names}


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
