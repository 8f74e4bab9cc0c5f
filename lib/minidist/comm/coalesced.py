"""Many tensors in few messages: one for each dtype and device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from minidist.comm.comm import Comm


def broadcast_coalesced(tensors: Iterable[torch.Tensor], comm: Comm, group_src: int = 0) -> None:
    """Give every rank what is in the tensors of the group's rank `group_src`, in place.

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


class Buffers:
    """A module's buffers, and whether rank 0's have to be given to all again.

    Args:
        module: whose they are.
        comm: between the ranks.
        share: whether to give them at all.

    Attributes:
        due: they may differ between ranks, since a forward with gradients may have changed them.
    """

    def __init__(self, module: nn.Module, comm: Comm, share: bool) -> None:
        self.due = False
        self._module, self._comm, self._share = module, comm, share

    @property
    def wanted(self) -> bool:
        """Whether to broadcast them before a forward that begins now."""
        there_are = any(True for _ in self._module.buffers())
        return self._share and there_are and (self.due or torch.is_grad_enabled())

    def broadcast(self, group_src: int = 0) -> None:
        """Give a rank's to all."""
        broadcast_coalesced(self._module.buffers(), self._comm, group_src)
        self.due = False
