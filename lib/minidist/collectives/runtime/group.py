"""A process group: its ranks, and which backend moves tensors between them."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["backends", "check_group", "global_rank", "members", "wire_device"]


def check_group(group: object) -> None:
    """Raise TypeError for what no process group is, ValueError if this rank is not in the group."""
    outside = group == dist.GroupMember.NON_GROUP_MEMBER  # what new_group returns there
    if group is None or isinstance(group, ProcessGroup):
        outside = dist.get_rank(group) < 0
    elif not outside:
        raise TypeError(
            f"group: expected a process group, as dist.new_group makes it, or None, got {group!r}"
        )
    if outside:
        raise ValueError("group: this rank is not a member of it")


def members(group: ProcessGroup | None) -> ProcessGroup:
    """The group itself; the default group for None."""
    chosen = group or dist.group.WORLD
    assert chosen is not None  # get_rank has raised where there is no default group
    return chosen


def global_rank(rank: int, group: ProcessGroup | None) -> int:
    """The global number of a rank of the group; messages to the user use it."""
    return rank if group is None else dist.get_global_rank(group, rank)


def backends(group: ProcessGroup | None) -> dict[str, str]:
    """Device type → backend that moves its tensors, such as {"cpu": "gloo", "cuda": "nccl"}."""
    return _parsed(str(dist.get_backend_config(group)))


@lru_cache
def _parsed(config: str) -> dict[str, str]:
    return dict(part.split(":") for part in config.split(","))


def wire_device(group: ProcessGroup | None) -> torch.device:
    """Where small messages of our own live: on the CPU if the group can send from there."""
    if "cpu" in backends(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
