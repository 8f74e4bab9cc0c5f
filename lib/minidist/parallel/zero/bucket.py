"""Parts: parameters that lie in one flat buffer, of which each rank owns a slice.

A part is to ZeRO what a bucket is to DDP: what travels together. Its parameters are views of its
buffer, so the all-gather that ends a step writes right into them, and nothing is copied.

[Note: a gradient that no rank has] An optimizer leaves a parameter alone that has no gradient: no
momentum, no weight decay. With gradients that are summed over the ranks, that is one of which *no*
rank has any; a rank that has none itself cannot know. Nobody asks: a missing gradient is sent as
-0.0, and the first element of each piece of one that there is never as -0.0, but as +0.0 if it is
zero. A sum of numbers is -0.0 only if all of them are. So who owns the piece sees it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn import Parameter

from minidist.comm.comm import Comm, Handle
from minidist.parallel.sharding.flat import Flat
from minidist.parallel.sharding.partition import Named, shaped
from minidist.profiler.spans import COMMUNICATION
from minidist.profiler.timeline import note


class Part:
    """Parameters of one group, dtype and device, their buffer, and what this rank owns of it.

    Args:
        named: the parameters; from now on their memory is the part's.
        group: the number of their parameter group.
        ranks, rank: as for `Flat`.

    Attributes:
        index: its place in the order in which parts travel.
        names, parameters: in the order in which gradients are expected.
        pieces: for each of them the 1-D part that this rank owns and steps on, maybe empty.
        flat: where they lie.
        buffer: 1-D [padded], the parameters' memory.
        places: for each parameter the view of the buffer that it is.
        sums: 1-D [shard_numel], the mean gradients of this rank's slice; None if there are none.
        stepped: the sums have been used in a step; what comes takes their place.
        arrived: parameters whose gradients are packed, to travel.
        used: parameters of which this rank had a gradient since they were last zeroed.
    """

    def __init__(self, named: Sequence[Named], group: int, ranks: int, rank: int) -> None:
        self.index, self.group = 0, group
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(parameter for _, parameter in named)
        like = self.parameters[0]
        self.flat = Flat([each.shape for each in self.parameters], ranks, rank)
        self.buffer = torch.zeros(self.flat.padded, dtype=like.dtype, device=like.device)
        parts = zip(self.flat.parts(self.buffer), self.parameters, strict=True)
        self.places = tuple(shaped(part, parameter) for part, parameter in parts)
        for place, parameter in zip(self.places, self.parameters, strict=True):
            place.copy_(parameter.detach())
            parameter.data = place
        trains = like.requires_grad
        owned = self.flat.pieces(self.flat.shard(self.buffer))
        self.pieces = tuple(Parameter(piece, requires_grad=trains) for piece in owned)
        self.sums: torch.Tensor | None = None
        self.stepped = False
        self.arrived: set[Parameter] = set()
        self.used: set[Parameter] = set()
        self._place_of = dict(zip(self.parameters, self.places, strict=True))
        self._heads = self._heads_of_pieces()
        self._awaited = 0
        self._packed: torch.Tensor | None = None  # 1-D [padded], the gradients that travel
        self._coming: tuple[Handle, torch.Tensor] | None = None

    # ---- gradients: packed, reduced, and of this rank's slice only ----

    @property
    def trains(self) -> bool:
        """Whether there is anything to train in it; it may have been frozen, or no longer be."""
        return self.flat.numel > 0 and any(each.requires_grad for each in self.parameters)

    @property
    def full(self) -> bool:
        """Whether all its gradients have arrived."""
        return len(self.arrived) == self._awaited

    def begin(self) -> None:
        """No gradient has arrived; all that are to be trained will."""
        self._awaited = sum(parameter.requires_grad for parameter in self.parameters)

    def take(self, parameter: Parameter, scale: float) -> None:
        """Copy a gradient, times `scale`, to where it travels from, and free it."""
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout != torch.strided:
            raise TypeError(
                f"rank {dist.get_rank()}: ZeroOptimizer: expected a dense gradient of "
                f"{self.name_of(parameter)}, got layout {gradient.layout}; build its module with "
                "sparse=False"
            )
        if self._packed is None:
            self._packed = torch.empty_like(self.buffer)
        place = self.view(self._packed, parameter)
        if parameter in self.arrived:  # a second one in this backward
            place.add_(gradient, alpha=scale)
        else:
            torch.mul(gradient, scale, out=place)
        parameter.grad = None
        self.arrived.add(parameter)

    def send(self, comm: Comm, scale: float) -> None:
        """Start to reduce what has arrived, and all gradients that there still are."""
        if self.stepped:
            self.forget(to_none=True)
        for parameter in self.parameters:
            if parameter.grad is not None:
                self.take(parameter, scale)
        packed = torch.empty_like(self.buffer) if self._packed is None else self._packed
        packed[self._heads] = packed[self._heads] + 0.0  # [Note: a gradient that no rank has]
        for parameter in self.parameters:
            if parameter not in self.arrived:
                self.view(packed, parameter).fill_(-0.0)
        self.flat.padding(packed).zero_()
        own = packed.new_empty(self.flat.shard_numel)
        handle = comm.reduce_scatter(own, packed, async_op=True)
        assert handle is not None
        note(f"reduce-scatter {self.index}", COMMUNICATION, handle)
        self._packed, self._coming = packed, (handle, own)
        self.used |= self.arrived

    def land(self) -> None:
        """Wait until it is reduced; add up what this rank owns, free the rest."""
        assert self._coming is not None
        handle, own = self._coming
        handle.wait()
        self._coming = self._packed = None
        self.arrived.clear()
        if self.sums is None:
            self.sums = own
        else:
            self.sums.add_(own)

    def give(self) -> None:
        """Give each piece its part of the sums; none, if no rank had a gradient of it."""
        if self.stepped:  # and since then frozen: nothing has come
            self.forget(to_none=True)
        if self.sums is None:
            return
        owned = zip(self.parameters, self.pieces, self.flat.pieces(self.sums), strict=True)
        for parameter, piece, gradient in owned:
            there = len(gradient) and (parameter in self.used or not missing(gradient))
            piece.grad = gradient if there else None

    def lend(self) -> None:
        """Give each piece its part of the whole, averaged gradient that the parameter has."""
        ranges = self.flat.ranges()
        for parameter, piece, (start, end) in zip(
            self.parameters, self.pieces, ranges, strict=True
        ):
            if parameter.grad is None or start == end:
                piece.grad = None
            else:
                whole = parameter.grad.to(piece.dtype)  # which is itself
                piece.grad = self.memory(whole, parameter)[start:end]

    def forget(self, to_none: bool) -> None:
        """Zero the gradients, or let there be none."""
        for piece in self.pieces:
            if to_none:
                piece.grad = None
            elif piece.grad is not None:  # which is a view of the sums
                piece.grad.zero_()
        self.stepped = False
        if to_none:
            self.sums = None
            self.used.clear()

    # ---- the parameters ----

    def gather(self, comm: Comm) -> Handle:
        """Start to give all ranks the slices of all."""
        handle = comm.all_gather(self.buffer, self.flat.shard(self.buffer), async_op=True)
        assert handle is not None
        note(f"all-gather {self.index}", COMMUNICATION, handle)
        return handle

    # ---- views ----

    def name_of(self, parameter: Parameter) -> str:
        """What a parameter of the part is called."""
        return dict(zip(self.parameters, self.names, strict=True))[parameter]

    def view(self, flat: torch.Tensor, parameter: Parameter) -> torch.Tensor:
        """The parameter's place in another 1-D [padded] tensor, in its shape and strides."""
        place = self._place_of[parameter]
        return flat.as_strided(place.shape, place.stride(), place.storage_offset())

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The places of all parameters in another 1-D [padded] tensor."""
        return [self.view(flat, parameter) for parameter in self.parameters]

    def memory(self, tensor: torch.Tensor, parameter: Parameter) -> torch.Tensor:
        """A tensor of the parameter's shape as 1-D, in the order of the parameter's memory.

        A view, if it is laid out like the parameter; it need not be of its dtype.
        """
        place = self._place_of[parameter]
        if tensor.stride() != place.stride() or tensor.is_conj() or tensor.is_neg():
            tensor = torch.empty_like(place, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
        return tensor.as_strided((place.numel(),), (1,))

    def _heads_of_pieces(self) -> torch.Tensor:
        """Where in the buffer the pieces of all ranks begin."""
        found = [
            offset + start
            for rank in range(self.flat.ranks)
            for offset, (start, end) in zip(self.flat.offsets, self.flat.ranges(rank), strict=True)
            if start < end
        ]
        return torch.tensor(found, dtype=torch.int64, device=self.buffer.device)


def missing(gradient: torch.Tensor) -> bool:
    """Whether a summed gradient says that there was none: see [Note: a gradient that no rank has].

    Args:
        gradient: 1-D, a rank's piece of it, not empty.
    """
    first = gradient[0].real if gradient.is_complex() else gradient[0]
    return bool((first == 0) & torch.signbit(first))
