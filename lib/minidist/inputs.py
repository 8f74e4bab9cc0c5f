"""What a collective accepts, and the exceptions for what it does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

Reduce = Callable[[torch.Tensor, torch.Tensor], object]

_REDUCE: dict[str, Reduce] = {
    "SUM": lambda mine, theirs: mine.add_(theirs),
    "AVG": lambda mine, theirs: mine.add_(theirs),
    "PRODUCT": lambda mine, theirs: mine.mul_(theirs),
    "MIN": lambda mine, theirs: torch.minimum(mine, theirs, out=mine),
    "MAX": lambda mine, theirs: torch.maximum(mine, theirs, out=mine),
}


def backends(group: ProcessGroup | None) -> dict[str, str]:
    """Device type → backend that moves its tensors, such as {"cpu": "gloo", "cuda": "nccl"}."""
    config = str(dist.get_backend_config(group))
    return dict(part.split(":") for part in config.split(","))


def check_tensor(tensor: torch.Tensor, group: ProcessGroup | None, *, written: bool) -> None:
    """Raise TypeError or ValueError if a collective cannot take this tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got a {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"expected a dense tensor, got layout {tensor.layout}; use .to_dense()")
    if tensor.device.type not in backends(group):
        raise ValueError(
            f"is on {tensor.device}, but the group's backend is {dist.get_backend(group)}"
        )
    if written and tensor.requires_grad:
        raise ValueError("requires grad, but is written in place; pass tensor.detach()")
    if written and _overlaps(tensor):
        raise ValueError("has elements that share memory, so it cannot be written; pass a clone()")


def check_parts(whole: torch.Tensor, part: torch.Tensor, ranks: int) -> None:
    """Raise if `whole` cannot be made of one `part` for each rank."""
    if whole.dtype != part.dtype:
        raise TypeError(f"dtypes differ: {whole.dtype} for the whole, {part.dtype} for a part")
    if whole.device != part.device:
        raise ValueError(f"devices differ: {whole.device} for the whole, {part.device} for a part")
    if whole.numel() != ranks * part.numel():
        raise ValueError(
            f"{whole.numel()} elements are not {ranks} parts of {part.numel()}, one for each rank"
        )


def reduction(
    op: ReduceOp | ReduceOp.RedOpType, dtype: torch.dtype, ranks: int
) -> tuple[Reduce, Callable[[torch.Tensor], object]]:
    """For `op`: how to reduce one tensor into another, and what to do to the result at the end."""
    name = next((name for name in _REDUCE if op == getattr(ReduceOp, name)), None)
    if name is None:
        raise ValueError(f"op must be one of {', '.join(_REDUCE)}, got {op}")
    if not _can_reduce(name, dtype):
        raise TypeError(f"op {name} has no meaning for {dtype}, or torch has no kernel for it")
    if name != "AVG":
        return _REDUCE[name], lambda result: None
    whole = not (dtype.is_floating_point or dtype.is_complex)
    rounding = "trunc" if whole else None
    return _REDUCE[name], lambda result: result.div_(ranks, rounding_mode=rounding)


@lru_cache
def _can_reduce(name: str, dtype: torch.dtype) -> bool:
    if name == "AVG" and dtype == torch.bool:
        return False
    try:
        _REDUCE[name](torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype))
    except RuntimeError:  # no kernel, or no order among complex numbers
        return False
    return True


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory: a stride is within what smaller strides span."""
    span = 0
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(d for d in dimensions if d[1] > 1):
        if stride <= span:
            return True
        span += stride * (size - 1)
    return False
