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
    """The device for small messages of our own: the CPU if the group can send from there."""
    if "cpu" in backends(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def stream_ordered(device: torch.device, group: ProcessGroup | None) -> bool:
    """True if messages from `device` are queued on its stream, as NCCL's are; the host goes on."""
    return device.type == "cuda" and backends(group)["cuda"] != "gloo"


def flat_device(device: torch.device, group: ProcessGroup | None) -> torch.device:
    """The device of `flat_view` for a tensor on `device`: Gloo cannot send from GPU memory."""
    return device if stream_ordered(device, group) else torch.device("cpu")


@contextmanager
def flat_view(
    tensor: torch.Tensor,
    group: ProcessGroup | None,
    *,
    read: bool = True,
    written: bool = True,
) -> Iterator[torch.Tensor]:
    """The tensor as 1-D, contiguous memory that the group's backend can send and receive.

    It is a view; or a copy, if what is in the tensor is `read`, and copied back at the end, if it
    is `written`.
    """
    device = flat_device(tensor.device, group)
    staged = device != tensor.device
    if tensor.is_contiguous() and not (staged or tensor.is_conj() or tensor.is_neg()):
        yield tensor.detach().as_strided((tensor.numel(),), (1,))  # one number may have any stride
        return
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=staged)
    yield (copy.copy_(tensor.detach()) if read else copy).view(-1)
    if written:
        tensor.copy_(copy)


@contextmanager
def flat_views(
    tensors: Sequence[torch.Tensor],
    group: ProcessGroup | None,
    *,
    read: bool = True,
    written: bool = True,
) -> Iterator[list[torch.Tensor]]:
    """A list of tensors, each as `flat_view` gives it."""
    with ExitStack() as stack:
        views = (flat_view(each, group, read=read, written=written) for each in tensors)
        yield [stack.enter_context(view) for view in views]
