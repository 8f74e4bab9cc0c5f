"""What the units of one model share while forward and backward run: their order, and the end.

[Note: the order of units] Nothing tells which unit comes next. But a step is like the one before:
so the units are written down as they run, and in the next forward each has the one fetched that
came after it then. Backward goes the other way. A guess that is wrong costs an all-gather, and what
was gathered in vain is freed at the end. The guess is the same on all ranks, as their orders are.

[Note: the end of backward] Autograd calls us back when the pass is over in which we asked it to. It
does not where the pass raises; then it drops the callback, and that we can see. (A GPU's thread may
hold it a moment longer; so autograd is also asked whether it is going back.) Some gradients have
been averaged by then, and the ranks may not have come equally far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import ReferenceType, ref

import torch
from torch.autograd import Variable

from minidist.parallel.autograd.module_edges import in_backward
from minidist.parallel.fsdp.unit import Reductions, Unit
from minidist.profiler.spans import COMPUTE
from minidist.profiler.timeline import NOTHING, Mark, mark


class Member(Protocol):
    """A unit, as it takes part in passes.

    Attributes:
        unit: its parameters.
        passes: those of all units of the model.
        going_back: backward has come to it and not left it.
        sync: its gradients are averaged.
        fetched: they were gathered for a use that has not come yet.
        stays: they were left whole by a forward, for its backward.
        seen, blind: a forward since the last backward had gradients; one had none, inside an
            outermost one that had.
    """

    unit: Unit
    passes: Passes
    going_back: bool
    sync: bool
    fetched: bool
    stays: bool
    seen: bool
    blind: bool

    def post_backward(self) -> None:
        """Its part of backward is over."""

    def reshard(self) -> None:
        """Let go of the whole parameters."""


class Passes:
    """What the units of one model share while they run.

    Attributes:
        members: the units, the outermost first.
        reductions: of gradients, under way.
        twice: the present backward records a graph itself, to go back through it in turn.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.reductions = Reductions()
        self._first: Member | None = None  # whose forward, now under way, all others are in
        self._order: list[Member] = []  # in which forwards have begun in it
        self._last: list[Member] = []  # the same of the forward before
        self._back: list[Member] = []  # in which forwards have ended to which backward will come
        self._before: dict[Member, Member] = {}
        self._callback: ReferenceType[Callable[[], None]] | None = None
        self._forward: Mark = NOTHING
        self._backward: Mark = NOTHING
        self._records = False  # the outermost forward is one with gradients
        self.twice = False

    @property
    def root(self) -> Unit:
        """The outermost one."""
        return self.members[0].unit

    # ---- forward ----

    def enter(self, member: Member) -> None:
        """A forward of a unit begins."""
        if self._first is None:
            self.check()
            self._first, self._order, self._back = member, [], []
            self._forward = mark("forward", COMPUTE, member.unit.device)
            self._records = torch.is_grad_enabled()
            for each in self.members:
                if each.stays:  # the optimizer may have changed them since
                    each.reshard()
        self._order.append(member)
        member.blind |= self._records and not torch.is_grad_enabled()

    def after(self, member: Member) -> Member | None:
        """Which unit is likely to be next: see [Note: the order of units]."""
        place = len(self._order)
        likely = place < len(self._last) and self._last[place - 1] is member
        return self._last[place] if likely else None

    def leave(self, member: Member, goes_back: bool) -> None:
        """A forward of a unit has ended; backward will come to it, or not."""
        if goes_back:
            self._back.append(member)
        if self._first is not member:
            return
        self._first, self._last = None, self._order
        self._before = {each: self._back[i - 1] for i, each in enumerate(self._back) if i}
        self._forward.end()
        for each in self.members:
            if each.fetched:  # in vain
                each.reshard()

    # ---- backward ----

    def before(self, member: Member) -> Member | None:
        """Which unit backward is likely to come to next."""
        return self._before.get(member)

    @property
    def going_back(self) -> bool:
        """Whether autograd is going back, and holds our callback."""  # [Note: the end of backward]
        return self._callback is not None and self._callback() is not None and in_backward()

    def begin_backward(self) -> None:
        """Backward has come to a unit; it may not be the first."""
        if self.going_back:
            return
        self.check()
        self.twice = torch.is_grad_enabled()
        callback = self._end
        self._backward = mark("backward", COMPUTE, self.root.device)
        self._callback = ref(callback)
        Variable._execution_engine.queue_callback(callback)

    @torch.no_grad()
    def _end(self) -> None:
        for each in reversed(self.members):
            each.post_backward()  # of those whose inputs need no gradient
        self.reductions.finish()
        self._backward.end()
        self._callback = None
        missed = [each for each in self.members if each.blind and not each.seen]
        for each in self.members:
            each.blind = each.seen = False
        for each in missed:
            if each.unit.module.training and any(block.trains for block in each.unit.blocks):
                raise RuntimeError(
                    f"{each.unit.where}: its forward ran under no_grad inside one that did not, so "
                    "backward gave its parameters no gradients; run it with gradients, freeze "
                    "them by requires_grad_(False), or put it into eval()"
                )

    def check(self) -> None:
        """Raise RuntimeError if the last backward has raised."""
        if self._callback is not None and not self.going_back:
            raise RuntimeError(
                f"{self.root.where}: its last backward raised, so its gradients were not averaged, "
                "or not all; zero the gradients and call reshard() on the outermost module, on "
                "all ranks, before the next forward"
            )

    def forget(self) -> None:
        """After a backward that raised: let go of all that was under way."""
        if self._callback is None or self.going_back:
            return
        self._callback = None
        self.reductions.forget()
        for each in self.members:
            for block in each.unit.blocks:
                block.gradients.drop()
            each.going_back = False
            each.reshard()
