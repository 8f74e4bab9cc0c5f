"""Buckets: gradients that travel together, in one flat buffer.

A collective costs its latency whatever its size, so many small gradients one by one pay it many
times; but a buffer of them all is full only when backward is over. Buckets lie between.

[Note: unused parameters] PyTorch walks the graph after each forward to find them, so that buckets
need not wait for what will not come. We do not: once the buckets are in the order of arrival, those
that never arrived on rank 0 are in the last ones, and all others leave early without a walk.
"""

from collections.abc import Iterable, Sequence

import torch
from torch.nn import Parameter

from minidist.comm.comm import Comm
from minidist.parallel.sharding.partition import Named, assign_alike, shaped


class Bucket:
    """Parameters of one dtype and device, and the flat memory in which their gradients travel.

    A view is a parameter's part of `flat`; those that are `ready` have their gradient. A
    communication hook sees it as a `torch.distributed.GradBucket`, with gradients not yet scaled.
    """

    def __init__(self, index: int, named: Sequence[Named], *, last: bool) -> None:
        self._index, self._last = index, last
        self.names = tuple(name for name, _ in named)
        parameters = [parameter for _, parameter in named]
        like, sizes = parameters[0], [each.numel() for each in parameters]
        self.flat = self._buffer = torch.zeros(sum(sizes), dtype=like.dtype, device=like.device)
        self.nbytes = self.flat.nbytes
        pairs = zip(parameters, torch.split(self.flat, sizes), strict=True)
        self.views = {parameter: shaped(part, parameter) for parameter, part in pairs}
        self.ready: set[Parameter] = set()

    @property
    def full(self) -> bool:
        return len(self.ready) == len(self.views)

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        """Return all gradients one after another, 1-D: `flat`, unless a hook has set another."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Let `buffer()` be another tensor, such as a compressed one, until the averages are in."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        return list(self.views.values())

    def parameters(self) -> list[Parameter]:
        return list(self.views)


def arrival_order(comm: Comm, named: Sequence[Named], arrivals: Iterable[Parameter]) -> list[Named]:
    """Return the parameters in the order of forward: the reverse of rank 0's order of arrival."""
    index_of = {parameter: index for index, (_, parameter) in enumerate(named)}
    came = [index_of[parameter] for parameter in arrivals]
    missing = [index for index in range(len(named)) if index not in set(came)]
    order = torch.tensor([*missing, *reversed(came)], device=named[0][1].device)
    comm.broadcast(order)
    return [named[index] for index in order.tolist()]


def build_buckets(order: Sequence[Named], first: float, cap: float) -> list[Bucket]:
    groups = assign_alike([parameter for _, parameter in order], first, cap)
    groups.sort(key=min, reverse=True)  # by the gradient that arrives last and makes it full
    return [
        Bucket(place, [order[index] for index in group], last=place + 1 == len(groups))
        for place, group in enumerate(groups)
    ]
