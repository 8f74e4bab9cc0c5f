"""Tensors that a collective accepts, and the exceptions for those that it does not."""

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch.distributed import ProcessGroup

from minidist.collectives.runtime.group import backends


def check_tensor(
    argument: str, tensor: torch.Tensor, group: ProcessGroup | None, *, written: bool
) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{argument}: expected a torch.Tensor, got a {type(tensor).__name__}")
    special = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if special or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError(
            f"{argument}: expected a plain, dense torch.Tensor, got a {type(tensor).__name__} of "
            f"layout {tensor.layout}; pass its to_local() or to_dense()"
        )
    if tensor.device.type not in (known := backends(group)):
        where = f"{argument}: is on {tensor.device}"
        raise ValueError(f"{where}, but the group moves tensors on {' and '.join(known)}")
    if written and tensor.requires_grad:
        raise ValueError(
            f"{argument}: requires grad, but is written in place; pass tensor.detach()"
        )
    if written and overlaps_itself(tensor):
        raise ValueError(
            f"{argument}: has elements that share memory, so it cannot be written; pass a clone()"
        )


def check_like(
    argument: str, tensor: torch.Tensor, name: str, other: torch.Tensor, times: int = 1
) -> None:
    """Raise unless a tensor is like another one, of `times` its size; with 0 of any size."""
    if tensor.dtype != other.dtype:
        raise TypeError(f"{argument}: expected {other.dtype}, as {name} has, got {tensor.dtype}")
    if tensor.device != other.device:
        expected = f"{argument}: expected to be on {other.device}, as {name} is"
        raise ValueError(f"{expected}, got {tensor.device}")
    if times and tensor.numel() != times * other.numel():
        size = f"{times} x {other.numel()} elements, for {name} has {other.numel()}"
        raise ValueError(f"{argument}: expected {size}, got {tensor.numel()}")


def split_sizes(
    argument: str, tensor: torch.Tensor, rows: Sequence[int] | None, ranks: int
) -> list[int]:
    """The elements in each rank's block of rows of a tensor; None or empty `rows`: equally many."""
    if not rows:
        rows = [len(tensor) // ranks] * ranks
    numbers = all(isinstance(n, int) and n >= 0 for n in rows)
    if not numbers or len(rows) != ranks or sum(rows) != len(tensor):
        raise ValueError(
            f"{argument}_split_sizes: expected {ranks} numbers that add up to {argument}'s "
            f"{len(tensor)} rows, one for each rank, got {list(rows)}"
        )
    return [n * prod(tensor.shape[1:]) for n in rows]


def by_name(argument: str, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{argument}[{index}]": tensor for index, tensor in enumerate(tensors)}


# ---- aliasing: what is written must not be read or written through another tensor ----


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """True if two elements may share memory: a stride is within what smaller strides span."""
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
    """Raise if a tensor that is written may share memory with another one; by arguments' names.

    Two may share it if the intervals do that they span.
    """
    furthest: dict[bool, tuple[int, str]] = {}  # written or read → the last end, and whose it is
    every = {**written, **read}
    for name in sorted(every, key=lambda name: every[name].data_ptr()):
        tensor, start = every[name], every[name].data_ptr()
        if not tensor.numel():
            continue
        for is_written, (end, other) in furthest.items():
            if start < end and (is_written or name in written):
                raise ValueError(f"{other} and {name} share memory; pass a clone() of one of them")
        last = sum(st * (n - 1) for st, n in zip(tensor.stride(), tensor.shape, strict=True))
        end = start + (last + 1) * tensor.element_size()
        furthest[name in written] = max(furthest.get(name in written, (0, "")), (end, name))


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


def is_slot(part: torch.Tensor, whole: torch.Tensor, rank: int) -> bool:
    """True if `part` is the memory of the rank's part of `whole`, both contiguous."""
    at = whole.data_ptr() + rank * part.nbytes
    return part.is_contiguous() and whole.is_contiguous() and part.data_ptr() == at
