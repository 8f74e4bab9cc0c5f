"""What a collective accepts as tensors, and the exceptions for what it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

import torch
from torch.distributed import ProcessGroup

from minidist.collectives.runtime.group import backends


def check_tensor(tensor: torch.Tensor, group: ProcessGroup | None, *, written: bool) -> None:
    """Raise TypeError or ValueError if a collective cannot take this tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got a {type(tensor).__name__}")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = type(tensor).__name__
        inside = "; pass its to_local()" if hasattr(tensor, "to_local") else ""
        raise TypeError(f"expected a plain torch.Tensor, got a {kind}{inside}")
    if tensor.layout != torch.strided:
        raise TypeError(f"expected a dense tensor, got layout {tensor.layout}; use .to_dense()")
    if tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else "nested"
        raise TypeError(f"expected a plain dense tensor, got a {kind} one")
    if tensor.device.type not in backends(group):
        known = " and ".join(backends(group))
        raise ValueError(f"is on {tensor.device}, but the group moves tensors on {known}")
    if written and tensor.requires_grad:
        raise ValueError("requires grad, but is written in place; pass tensor.detach()")
    if written and overlaps_itself(tensor):
        raise ValueError("has elements that share memory, so it cannot be written; pass a clone()")


def check_parts(output: torch.Tensor, part: torch.Tensor, ranks: int) -> None:
    """Raise if the larger tensor cannot be made of one `part` for each rank."""
    if output.dtype != part.dtype:
        raise TypeError(f"dtypes differ: {output.dtype} for the whole, {part.dtype} for a part")
    if output.device != part.device:
        raise ValueError(f"devices differ: {output.device} for the whole, {part.device} for a part")
    if output.numel() != ranks * part.numel():
        raise ValueError(
            f"{output.numel()} elements are not {ranks} parts of {part.numel()}, one for each rank"
        )


def check_like(
    tensor: torch.Tensor, like: Mapping[str, torch.Tensor], *, any_size: bool = False
) -> None:
    """Raise if a tensor is not like another one, given by its name."""
    ((name, other),) = like.items()
    if tensor.dtype != other.dtype:
        raise TypeError(f"expected {other.dtype}, as {name} has, got {tensor.dtype}")
    if tensor.device != other.device:
        raise ValueError(f"expected to be on {other.device}, as {name} is, got {tensor.device}")
    if not any_size and tensor.numel() != other.numel():
        size = f"{other.numel()} elements, as in {name}"
        raise ValueError(f"expected {size}, got {tensor.numel()}")


def split_sizes(
    argument: str, tensor: torch.Tensor, rows: Sequence[int] | None, ranks: int
) -> list[int]:
    """The elements in each rank's block of rows of a tensor; None or empty `rows`: equally many."""
    sizes = f"{argument}_split_sizes"
    if not tensor.dim():
        raise ValueError(f"{argument}: expected at least one dimension, got none")
    if not rows:
        if len(tensor) % ranks:
            raise ValueError(
                f"{argument}: {len(tensor)} rows cannot be split evenly between {ranks} ranks; "
                f"pass {sizes}"
            )
        rows = [len(tensor) // ranks] * ranks
    if len(rows) != ranks:
        raise ValueError(f"{sizes}: expected {ranks} sizes, one for each rank, got {len(rows)}")
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in rows):
        raise ValueError(f"{sizes}: expected whole numbers from 0 on, got {list(rows)}")
    if sum(rows) != len(tensor):
        raise ValueError(f"{sizes}: {list(rows)} add up to {sum(rows)}, not {len(tensor)} rows")
    return [n * prod(tensor.shape[1:]) for n in rows]


def by_name(argument: str, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a list by what messages call them."""
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

    Two share it if the intervals do that they span, but for columns of one matrix.
    """
    opened: list[tuple[int, str, torch.Tensor]] = []  # intervals that may still overlap
    every = [(name, tensor) for name, tensor in (*written.items(), *read.items()) if tensor.numel()]
    for name, tensor in sorted(every, key=lambda item: item[1].data_ptr()):
        start = tensor.data_ptr()
        opened = [each for each in opened if each[0] > start]
        for _, other, theirs in opened:
            if (name in written or other in written) and not _interleaved(tensor, theirs):
                raise ValueError(f"{other} and {name} share memory; pass a clone() of one of them")
        last = sum(st * (n - 1) for st, n in zip(tensor.stride(), tensor.shape, strict=True))
        opened.append((start + (last + 1) * tensor.element_size(), name, tensor))


def _interleaved(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if one's elements lie between the other's, as a matrix's columns do."""
    steps = [
        stride * tensor.element_size()
        for tensor in (one, other)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size > 1
    ]
    period = gcd(*steps)  # both have their elements at one place of each period
    if not period:
        return False
    offset = (other.data_ptr() - one.data_ptr()) % period
    return one.element_size() <= offset <= period - other.element_size()


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors are the same elements of the same memory."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


def is_slot(part: torch.Tensor, output: torch.Tensor, rank: int) -> bool:
    """True if `part` is the memory of the rank's part of `output`, both contiguous."""
    at = output.data_ptr() + rank * part.nbytes
    return part.is_contiguous() and output.is_contiguous() and part.data_ptr() == at
