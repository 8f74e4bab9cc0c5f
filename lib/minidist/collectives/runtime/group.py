"""A process group: its ranks, and the memory that its backend can send and receive."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def check_group(group: Any, call: str = "") -> None:
    """Raise TypeError for what no process group is, ValueError if this rank is not in the group."""
    where = f"rank {dist.get_rank()}: {call}group"
    outside = group == dist.GroupMember.NON_GROUP_MEMBER  # what new_group returns there
    if not (outside or group is None or isinstance(group, ProcessGroup)):
        raise TypeError(
            f"{where}: expected a process group, as dist.new_group makes it, or None, got {group!r}"
        )
    if outside or dist.get_rank(group) < 0:
        raise ValueError(f"{where}: this rank is not a member of it")


def members(group: ProcessGroup | None) -> ProcessGroup:
    """The group itself; the default group for None."""
    return group or cast(ProcessGroup, dist.group.WORLD)  # get_rank has raised if there is none


def backends(group: ProcessGroup | None) -> dict[str, str]:
    """Device type → backend that moves its tensors, such as {"cpu": "gloo", "cuda": "nccl"}."""
    config = str(dist.get_backend_config(group))
    return dict(part.split(":") for part in config.split(","))


def wire_device(group: ProcessGroup | None) -> torch.device:
    """Where small messages of our own live: on the CPU if the group can send from there."""
    if "cpu" in backends(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def flat_device(tensor: torch.Tensor, group: ProcessGroup | None) -> torch.device:
    """Where `flat_view` of the tensor is: Gloo cannot send from GPU memory."""
    staged = tensor.is_cuda and backends(group)["cuda"] == "gloo"
    return torch.device("cpu") if staged else tensor.device


@contextmanager
def flat_view(
    tensor: torch.Tensor, group: ProcessGroup | None, *, written: bool = True
) -> Iterator[torch.Tensor]:
    """The tensor as 1-D, contiguous memory that the group's backend can send and receive.

    It is a view, or a copy that is copied back at the end; unless it is not `written`.
    """
    device = flat_device(tensor, group)
    staged = device != tensor.device
    if tensor.is_contiguous() and not (staged or tensor.is_conj() or tensor.is_neg()):
        yield tensor.detach().as_strided((tensor.numel(),), (1,))  # one number may have any stride
        return
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=staged)
    yield copy.copy_(tensor.detach()).view(-1)
    if written:
        tensor.copy_(copy)


@contextmanager
def flat_views(
    tensors: Sequence[torch.Tensor], group: ProcessGroup | None, *, written: bool
) -> Iterator[list[torch.Tensor]]:
    """The same for several."""
    with ExitStack() as stack:
        yield [stack.enter_context(flat_view(each, group, written=written)) for each in tensors]
