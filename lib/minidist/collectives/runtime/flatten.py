"""Tensors as flat memory that the group's backend can send and receive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch.distributed import ProcessGroup

from minidist.collectives.runtime.group import backends


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

    It is a view, or a copy that is copied back at the end. If it is not `written`, nothing may be
    written to it, and nothing is copied back.
    """
    plain = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if flat_device(tensor, group) != tensor.device:
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
        flat.copy_(tensor.reshape(-1))
    elif plain:
        yield tensor.detach().as_strided((tensor.numel(),), (1,))  # one number may have any stride
        return
    else:
        flat = flat_copy(tensor, tensor.device)
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
