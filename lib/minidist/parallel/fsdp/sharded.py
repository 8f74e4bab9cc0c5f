"""Whose shards a state dict holds: `module.state_dict()` of an FSDP module is this rank's alone.

Another rank's shards often have the same shapes, so that loading them would go unnoticed. They say
themselves whose they are, in the dict's metadata, which `torch.save` keeps.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from minidist.comm.comm import Comm

LABEL = "shards"  # in the metadata of a module that is a unit


def label(module: nn.Module, comm: Comm, layout: str) -> None:
    """Let a unit's state dict say whose it is, and let it load no other.

    Args:
        module: of the unit; has `reshard()`.
        comm: between the ranks that have the shards.
        layout: how they are cut.
    """
    mine = f"rank {comm.rank} of {comm.ranks}, cut by {layout}"

    def before(module: Any, *_: object) -> None:
        module.reshard()

    def save(module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
        metadata[LABEL] = mine

    def load(module: Any, state: Any, prefix: str, metadata: dict[str, Any], *_: object) -> None:
        module.reshard()
        if metadata.get("assign_to_params_buffers"):
            raise RuntimeError(f"{_where(prefix)}: shards are loaded in place: pass assign=False")
        given = metadata.get(LABEL)
        if given != mine:
            got = f"those of {given}" if given else "a state that says nothing of shards"
            raise RuntimeError(
                f"{_where(prefix)}: expected the shards of {mine}, got {got}; "
                "a full state, on any number of ranks, goes by minidist.load_full_state_dict"
            )

    module.register_state_dict_pre_hook(before)  # type: ignore[no-untyped-call]
    module.register_state_dict_post_hook(save)  # type: ignore[no-untyped-call]
    module.register_load_state_dict_pre_hook(load)  # type: ignore[no-untyped-call]


def _where(prefix: str) -> str:
    unit = f"unit {prefix[:-1]}" if prefix else "the root unit"
    return f"rank {dist.get_rank()}: load_state_dict: {unit}"
