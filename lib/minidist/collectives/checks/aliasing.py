"""Which tensors share memory: what is written must not be read or written through another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

MOST_WORK: Any = 100_000  # numpy's own annotation knows only 0 and -1


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory: a stride is within what smaller strides span."""
    if not tensor.numel():
        return False
    span = 0
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(d for d in dimensions if d[1] > 1):
        if stride <= span:
            return True
        span += stride * (size - 1)
    return False


def check_apart(written: Mapping[str, torch.Tensor], read: Mapping[str, torch.Tensor]) -> None:
    """Raise if a tensor that is written shares memory with another one; by the arguments' names."""
    opened: list[tuple[int, str, torch.Tensor]] = []  # spans of memory that may still overlap
    every = [(name, tensor) for name, tensor in (*written.items(), *read.items()) if tensor.numel()]
    for name, tensor in sorted(every, key=lambda item: item[1].data_ptr()):
        start = tensor.data_ptr()
        opened = [each for each in opened if each[0] > start]
        for _, other, theirs in opened:
            if (name in written or other in written) and _share(tensor, theirs):
                raise ValueError(f"{other} and {name} share memory; pass a clone() of one of them")
        last = sum(st * (n - 1) for st, n in zip(tensor.stride(), tensor.shape, strict=True))
        opened.append((start + (last + 1) * tensor.element_size(), name, tensor))


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


def is_slot(part: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    """Whether `part` is the memory of rank's part of `whole`, both contiguous."""
    at = whole.data_ptr() + rank * part.nbytes
    return part.is_contiguous() and whole.is_contiguous() and part.data_ptr() == at


class _Addresses:
    """A tensor's addresses for numpy, which looks at them and not at what is there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
        }


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Exactly, unless that takes too long: then yes. Columns of a matrix, say, do not."""
    arrays = np.asarray(_Addresses(one)), np.asarray(_Addresses(other))
    try:
        return bool(np.shares_memory(*arrays, max_work=MOST_WORK))
    except np.exceptions.TooHardError:
        return True
