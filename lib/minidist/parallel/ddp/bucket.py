"""Buckets: gradients that travel together, in one flat buffer.

A collective costs its latency whatever its size, so many small gradients one by one pay it many
times; but a buffer of them all is full only when backward is over. Buckets lie between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.nn import Parameter

from minidist.comm.comm import Comm
from minidist.parallel.sharding.partition import Named, assign_alike, shaped


def arrival_order(comm: Comm, named: Sequence[Named], arrivals: Iterable[Parameter]) -> list[Named]:
    """Return the parameters in the order of forward: the reverse of rank 0's order of arrival.

    Those that never arrived come first, so that only the last bucket waits for them.
    """
    index_of = {parameter: index for index, (_, parameter) in enumerate(named)}
    came = [index_of[parameter] for parameter in arrivals]
    missing = [index for index in range(len(named)) if index not in set(came)]
    order = torch.tensor([*missing, *reversed(came)], device=named[0][1].device)
    comm.broadcast(order)
    return [named[index] for index in order.tolist()]


def build_buckets(order: Sequence[Named], first: float, cap: float) -> list[Bucket]:
    """Return buckets for parameters in the order of forward, each of one dtype and device."""
    groups = assign_alike([parameter for _, parameter in order], first, cap)
    groups.sort(key=min, reverse=True)  # by the gradient that arrives last and makes it full
    return [
        Bucket(place, [order[index] for index in group], last=place + 1 == len(groups))
        for place, group in enumerate(groups)
    ]


class Bucket:
    """Parameters of one dtype and device, and the buffer in which their gradients travel.

    A view is a parameter's part of the buffer; those that are `ready` have their gradient.
    """

    def __init__(self, index: int, named: Sequence[Named], *, last: bool) -> None:
        self.index, self.last = index, last
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(parameter for _, parameter in named)
        like, sizes = self.parameters[0], [each.numel() for each in self.parameters]
        self.buffer = torch.zeros(sum(sizes), dtype=like.dtype, device=like.device)
        self.nbytes = self.buffer.nbytes
        parts = torch.split(self.buffer, sizes)
        pairs = zip(self.parameters, parts, strict=True)
        self.views = {parameter: shaped(part, parameter) for parameter, part in pairs}
        self.ready: set[Parameter] = set()

    @property
    def full(self) -> bool:
        """True if all its gradients are ready."""
        return len(self.ready) == len(self.parameters)

    def adopt(self, parameter: Parameter) -> None:
        """Let the parameter's gradient be the view of the buffer, and accumulate there."""
        view = self.views[parameter]
        if parameter.grad is not None and parameter.grad is not view:
            parameter.grad = view.copy_(parameter.grad)


class GradBucket:
    """A bucket of this rank's gradients, not yet scaled, as `torch.distributed.GradBucket`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._buffer = bucket, bucket.buffer

    def index(self) -> int:
        """Its place in the order in which buckets are launched."""
        return self._bucket.index

    def is_last(self) -> bool:
        """True if no bucket is launched after it in this backward."""
        return self._bucket.last

    def buffer(self) -> torch.Tensor:
        """All gradients one after another, 1-D."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Let `buffer()` be another tensor, such as a compressed one."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """The bucket's own part for each parameter, in the parameter's shape."""
        return list(self._bucket.views.values())

    def parameters(self) -> list[torch.Tensor]:
        """The parameters, in the order of the gradients."""
        return list(self._bucket.parameters)
