"""Buckets: gradients that travel together, in one flat buffer.

A collective has its price in latency whatever its size, so that of many small gradients one by one
is paid many times; but one buffer of them all is whole only when backward is over. Buckets lie
between.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import torch
from torch.nn import Parameter

from minidist.comm.comm import Comm
from minidist.parallel.sharding.partition import Named, assign_alike, shaped


def arrival_order(comm: Comm, named: Sequence[Named], arrivals: Iterable[Parameter]) -> list[Named]:
    """The parameters in the order of forward, as rank 0's gradients tell, which came the other way.

    Those of which none came are first, so that no bucket waits for them but the last.
    """
    index_of = {parameter: index for index, (_, parameter) in enumerate(named)}
    came = [index_of[parameter] for parameter in arrivals]
    missing = [index for index in range(len(named)) if index not in set(came)]
    order = torch.tensor([*missing, *reversed(came)], device=named[0][1].device)
    comm.broadcast(order)
    return [named[index] for index in order.tolist()]


def build(order: Sequence[Named], first: float, cap: float) -> list[Bucket]:
    """The buckets of parameters in the order of forward; those of a dtype and device together."""
    groups = assign_alike([parameter for _, parameter in order], first, cap)
    groups.sort(key=min, reverse=True)  # by the gradient that arrives last and makes it full
    return [
        Bucket(place, [order[index] for index in group], last=place + 1 == len(groups))
        for place, group in enumerate(groups)
    ]


class Bucket:
    """Parameters of one dtype and device, and the buffer in which their gradients travel.

    Attributes:
        index: its place in the order in which buckets leave.
        last: whether none leaves after it.
        names, parameters: in the order in which gradients are expected.
        nbytes: the size of the buffer.
        buffer: 1-D; the gradients one after another.
        views: each parameter's part of it, in the parameter's shape.
        arrived: the parameters whose gradients autograd has made in this backward.
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
        self.arrived: set[Parameter] = set()

    def name_of(self, parameter: Parameter) -> str:
        """What a parameter of the bucket is called."""
        return dict(zip(self.parameters, self.names, strict=True))[parameter]

    @property
    def full(self) -> bool:
        """Whether all its gradients have arrived."""
        return len(self.arrived) == len(self.parameters)

    def pack(self, scale: float, as_view: bool) -> None:
        """Put all gradients into the buffer; one that there is not counts as zeros."""
        for parameter, view in self.views.items():
            arrived = parameter in self.arrived
            if not arrived and parameter.grad is view:  # to stay as it is, if no rank has used it
                parameter.grad = view.clone()
            self.put(parameter, scale, as_view and arrived)

    def put(self, parameter: Parameter, scale: float, as_view: bool) -> None:
        """Put one gradient into the buffer.

        Args:
            parameter: of this bucket.
            scale: times this. By 0 they are zeros whatever they were, NaN too: the rank counts for
                nothing.
            as_view: let the gradient be the view of the buffer from now on.
        """
        gradient, view = parameter.grad, self.views[parameter]
        if gradient is None or scale == 0:
            view.zero_()
        elif gradient is not view or scale != 1:
            torch.mul(gradient, scale, out=view)
        if as_view and gradient is not None:
            parameter.grad = view

    def unpack(self, as_view: bool, used: Container[Parameter] | None = None) -> None:
        """Give the parameters the gradients that came back; all, or those that are `used`."""
        for parameter, view in self.views.items():
            if used is not None and parameter not in used:
                continue
            if as_view:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.clone()
            else:
                parameter.grad.copy_(view)

    def __repr__(self) -> str:
        return f"Bucket({self.index}: {', '.join(self.names)}; {self.nbytes} bytes)"


class GradBucket:
    """A bucket as communication hooks see it, with the methods of `torch.distributed.GradBucket`.

    Args:
        bucket: its gradients are those of this rank, not yet scaled.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._buffer = bucket, bucket.buffer

    def index(self) -> int:
        """Its place in the order in which buckets leave."""
        return self._bucket.index

    def is_last(self) -> bool:
        """Whether no bucket leaves after it in this backward."""
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
