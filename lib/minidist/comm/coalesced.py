"""Many tensors in few messages: one for each dtype and device."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from minidist.comm.comm import Comm


def broadcast_coalesced(tensors: Iterable[torch.Tensor], comm: Comm, group_src: int = 0) -> None:
    """Write the tensors of the group's rank `group_src` into those of every other rank.

    Autograd does not see that they are written: a second forward may broadcast a buffer that the
    backward of the first still holds, as BatchNorm's do, which does not read it there.

    Args:
        tensors: of any shapes, dtypes and strides; alike on all ranks but for the strides.
        comm: one broadcast is made for each dtype and device, in the order of first appearance.
        group_src: the root's rank in the group.
    """
    kinds: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
        comm.broadcast(flat, group_src)
        if comm.rank != group_src:
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.data.copy_(part.view(tensor.shape))
