"""ReduceOp → the function that reduces one tensor into another."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch.distributed import ReduceOp

Op = ReduceOp | ReduceOp.RedOpType
Reduce = Callable[[torch.Tensor, torch.Tensor], object]  # reduce(mine, theirs) changes mine
Finish = Callable[[torch.Tensor], object]  # what is done to the result at the end

_REDUCE: dict[str, Reduce] = {
    "SUM": lambda mine, theirs: mine.add_(theirs),
    "AVG": lambda mine, theirs: mine.add_(theirs),
    "PRODUCT": lambda mine, theirs: mine.mul_(theirs),
    "MIN": lambda mine, theirs: torch.minimum(mine, theirs, out=mine),
    "MAX": lambda mine, theirs: torch.maximum(mine, theirs, out=mine),
}

NARROW = (torch.uint8, torch.int8, torch.int16)


def op_name(op: Op) -> str:
    """Return "SUM" for ReduceOp.SUM and so on; for an op that we do not have its repr."""
    known = isinstance(op, ReduceOp | ReduceOp.RedOpType)
    return next((n for n in _REDUCE if known and op == getattr(ReduceOp, n)), "") or repr(op)


def reduction(op: Op, dtype: torch.dtype, ranks: int) -> tuple[Reduce, Finish]:
    """Return how to reduce one tensor into another by `op`, and what finishes the result.

    Raises ValueError for an op that we do not have, TypeError if torch cannot do it on this dtype.
    """
    name = op_name(op)
    if name not in _REDUCE:
        raise ValueError(f"op must be one of ReduceOp's {', '.join(_REDUCE)}, got {name}")
    if not _can_reduce(name, dtype):
        raise TypeError(f"op {name} has no meaning for {dtype}, or torch has no kernel for it")
    if name == "AVG" and dtype in NARROW:
        raise TypeError(f"op AVG: the ranks' sum may not fit into {dtype}; convert it to int32")
    return _REDUCE[name], partial(_divide, ranks=ranks) if name == "AVG" else lambda result: None


def _divide(total: torch.Tensor, ranks: int) -> None:
    exact = total.is_floating_point() or total.is_complex()
    total.div_(ranks, rounding_mode=None if exact else "trunc")


@lru_cache
def _can_reduce(name: str, dtype: torch.dtype) -> bool:
    one = torch.zeros(1, dtype=dtype, device="cpu")
    try:
        _REDUCE[name](one, one.clone())
        if name == "AVG":
            _divide(one, 1)
    except RuntimeError:  # no kernel, no order among complex numbers, or no half of a bool
        return False
    return True
