"""What messages are read from and written to: one tensor, or a tensor for each chunk.

[Note: warm inboxes] Memory that is fresh from the system costs a page fault for every 4 KiB at the
first touch, which at 16 MiB took as long as the adding. So a thread keeps its inboxes: `WINDOW`
pieces and one at most.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch

from minidist.schedule import program as plan
from minidist.schedule.program import Elements, Plan, Program

_kept = threading.local()


class Whole:
    """A tensor (1-D, contiguous) of which the schedule's chunks are slices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.like, self._tensor = tensor, tensor
        self._wire, self._size = tensor.view(torch.uint8), tensor.element_size()

    def lay_out(self, prog: Program) -> Plan:
        """The plan for what is stored here."""
        return plan.lay_out(prog, len(self._tensor), self._size, plan.PIECE)

    def elements(self, at: Elements) -> torch.Tensor:
        """What is there, to be reduced into."""
        return self._tensor[at.low : at.high]

    def wire(self, at: Elements) -> torch.Tensor:
        """The same as bytes: messages are bytes, so any dtype goes, on any backend."""
        return self._wire[at.low * self._size : at.high * self._size]


class Parts:
    """A tensor (1-D, contiguous) for each chunk that this rank has, all of one dtype and device."""

    def __init__(self, parts: Mapping[int, torch.Tensor]) -> None:
        self.like = next(iter(parts.values()), torch.empty(0))
        self._parts = parts
        self._size = self.like.element_size()

    def lay_out(self, prog: Program) -> Plan:
        """The plan for what is stored here."""
        sizes = tuple((chunk, len(part)) for chunk, part in self._parts.items())
        return plan.lay_out_parts(prog, sizes, self._size, plan.PIECE)

    def elements(self, at: Elements) -> torch.Tensor:
        """What is there, to be reduced into."""
        return self._parts[at.chunk][at.low : at.high]

    def wire(self, at: Elements) -> torch.Tensor:
        """The same as bytes."""
        return self.elements(at).view(torch.uint8)


def inboxes(like: torch.Tensor, rows: int, inbox: int) -> torch.Tensor:
    """`rows` of `inbox` elements like those of the tensor, see [Note: warm inboxes]."""
    size = rows * inbox * like.element_size()
    most = (plan.WINDOW + 1) * plan.PIECE
    if like.is_cuda or size > most:  # CUDA's allocator keeps its own memory
        return like.new_empty((rows, inbox))
    if getattr(_kept, "room", None) is None or len(_kept.room) < size:
        _kept.room = torch.empty(size, dtype=torch.uint8)
    room: torch.Tensor = _kept.room
    return room[:size].view(like.dtype).view(rows, inbox)


def forget_inboxes() -> None:
    """Let go of them: a late message may still be written there."""
    _kept.room = None
