"""Groups of parameters that share a flat buffer, and each one's place in it: arithmetic alone.

[Note: the layout of views] A gradient's place in the buffer is seen through a view of its
parameter's shape and, where the parameter's memory has no gaps, its strides, since autograd lays
out gradients as it does parameters. So copying a gradient of a channels_last weight transposes
nothing, and a view may take the gradient's place.
"""

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from minidist.schedule.buckets import assign

MIB = 1 << 20
Named = tuple[str, Parameter]


def alike(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Indexes of those that may lie in one buffer: of one dtype and device, the frozen apart."""
    kinds: dict[object, list[int]] = {}
    for index, each in enumerate(tensors):
        kinds.setdefault((each.dtype, each.device, each.requires_grad), []).append(index)
    return list(kinds.values())


def assign_alike(tensors: Sequence[torch.Tensor], first: float, cap: float) -> list[list[int]]:
    """`assign` for parameters that are not all alike: indexes into `tensors`, kind by kind."""
    return [
        [members[place] for place in group]
        for members in alike(tensors)
        for group in assign([tensors[index].nbytes for index in members], first, cap)
    ]


def shaped(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of the parameter's shape, of a 1-D part: see [Note: the layout of views]."""
    kept = torch.empty_like(like, device="meta").stride()  # as they are, unless there are gaps
    if kept == like.stride():
        return part.as_strided(like.shape, kept)
    return part.view(like.shape)
