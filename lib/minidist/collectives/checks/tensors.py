"""What a collective accepts, the exceptions for what it does not, and tensors as flat memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from math import prod

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives.checks.aliasing import overlaps_itself

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
    return _parsed(str(dist.get_backend_config(group)))


@lru_cache
def _parsed(config: str) -> dict[str, str]:
    return dict(part.split(":") for part in config.split(","))


def check_tensor(tensor: torch.Tensor, group: ProcessGroup | None, *, written: bool) -> None:
    """Raise TypeError or ValueError if a collective cannot take this tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got a {type(tensor).__name__}")
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


def check_like(tensor: torch.Tensor, like: Mapping[str, torch.Tensor], *, any_size: bool) -> None:
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


def blocks(flat: torch.Tensor, sizes: Sequence[int]) -> dict[int, torch.Tensor]:
    """Views of a flat tensor, of so many elements for each rank."""
    return dict(enumerate(torch.split(flat, list(sizes))))


def by_name(argument: str, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a list by what messages call them."""
    return {f"{argument}[{index}]": tensor for index, tensor in enumerate(tensors)}


def op_name(op: ReduceOp | ReduceOp.RedOpType) -> str:
    """Return "SUM" for ReduceOp.SUM and so on; of an op that we do not know its repr."""
    if not isinstance(op, ReduceOp | ReduceOp.RedOpType):
        return repr(op)
    return next((name for name in _REDUCE if op == getattr(ReduceOp, name)), repr(op))


def reduction(
    op: ReduceOp | ReduceOp.RedOpType, dtype: torch.dtype, ranks: int
) -> tuple[Reduce, Callable[[torch.Tensor], object]]:
    """For `op`: how to reduce one tensor into another, and what to do to the result at the end."""
    name = op_name(op)
    if name not in _REDUCE:
        raise ValueError(f"op must be one of {', '.join(_REDUCE)}, got {name}")
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


def wire_device(group: ProcessGroup | None) -> torch.device:
    """Where the messages of the check live: on the CPU if the group's backend can send from it."""
    if "cpu" in backends(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def flat_device(tensor: torch.Tensor, group: ProcessGroup | None) -> torch.device:
    """Where `flat_view` of the tensor is: Gloo cannot send from GPU memory."""
    staged = tensor.is_cuda and backends(group)["cuda"] == "gloo"
    return torch.device("cpu") if staged else tensor.device


def flat_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor as 1-D, contiguous memory on `device`, to be read only: itself where it can be."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().to(device)


@contextmanager
def flat_view(
    tensor: torch.Tensor, group: ProcessGroup | None, *, written: bool = True
) -> Iterator[torch.Tensor]:
    """The tensor as 1-D, contiguous memory that the group's backend can send and receive.

    What is done to it is done to the tensor: it is a view, or a copy that is copied back. If it is
    not `written`, nothing may be done to it, and nothing is copied back.
    """
    plain = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if tensor.is_cuda and backends(group)["cuda"] == "gloo":  # it cannot send from GPU memory
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
        flat.copy_(tensor.reshape(-1))
    elif plain:
        yield tensor.detach().as_strided((tensor.numel(),), (1,))  # one number may have any stride
        return
    else:
        flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    yield flat
    if written:
        tensor.copy_(flat.view(tensor.shape))


@contextmanager
def flat_views(
    tensors: Mapping[int, torch.Tensor], group: ProcessGroup | None, *, written: bool
) -> Iterator[dict[int, torch.Tensor]]:
    """The same for several, by their keys."""
    with ExitStack() as stack:
        yield {
            key: stack.enter_context(flat_view(tensor, group, written=written))
            for key, tensor in tensors.items()
        }
