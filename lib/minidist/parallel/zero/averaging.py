"""How each rank gets the mean gradients of what it owns: the difference between ZeRO's stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Parameter

from minidist.collectives.call import Run
from minidist.comm.comm import Comm
from minidist.parallel.autograd.backward import Backward
from minidist.parallel.zero.bucket import Part
from minidist.parallel.zero.checks import NAME, meet, nothing


class Lender:
    """Stage 1 on DDP: each parameter has the whole mean gradient, and lends pieces their parts."""

    local = False  # gradients are each rank's own, until they are averaged here
    parts: list[Part]

    def __init__(self, comm: Comm) -> None:
        self.comm, self.synchronising, self._compared = comm, True, False
        self.look: Run = nothing  # raises if the parameters are no longer what they were

    def take(self, parts: list[Part]) -> None:
        """See to the gradients of these from now on."""
        self.parts = parts

    def average(self) -> None:
        """Let each piece have its part of the mean gradient.

        Without DDP each rank would step on its slices by other gradients, and all would look well.
        So the first ones are compared, where checks are on.
        """
        every = [parameter.grad for part in self.parts for parameter in part.parameters]
        first = [] if self._compared else [each for each in every if each is not None]
        meet(f"{NAME}, averaging", self.comm, check=self.look, averaged=first)
        self._compared = True
        for part in self.parts:
            part.lend()

    def done(self) -> None:
        """A step is over: pieces give back what they were lent."""
        for part in self.parts:
            part.forget(to_none=True)

    def watch(self, parameters: Iterable[Any]) -> None:
        """Autograd will make gradients of these."""

    def check(self) -> None:
        """Raise RuntimeError if a backward has not come to its end."""


class Averager(Lender):
    """Stage 1 alone: gives each rank the mean gradients of its own slices, part by part.

    Here `begin` and `finish` follow each other, in `step()`. In stage 2 a backward is between.
    """

    local = True

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self.scale, self.rounds = 1 / comm.ranks, 0  # since the last step
        self.left: deque[Part] = deque()
        self.flying: Part | None = None

    def take(self, parts: list[Part]) -> None:
        """See to the gradients of these from now on."""
        super().take(parts)
        self.part_of = {parameter: part for part in parts for parameter in part.parameters}

    def begin(self) -> None:
        """1. Nothing is on its way. A rank without a backward comes here at its step."""
        meet(f"{NAME}, averaging", self.comm, check=self.look)
        self.left = deque(part for part in self.parts if part.trains)
        for part in self.left:
            part.begin()
        self.rounds += 1

    def arrived(self, parameter: Parameter) -> None:
        """2. Take a gradient away, and send what is full, in one order."""
        self.part_of[parameter].take(parameter, self.scale)
        while self.left and self.left[0].full:
            self.send()

    def send(self) -> None:
        """3. Reduce-scatter the next part; free the one before, so that two at most are held."""
        part = self.left.popleft()
        part.send(self.comm, self.scale)
        self.land()
        self.flying = part

    def land(self) -> None:
        """4. Wait for what is on its way."""
        part, self.flying = self.flying, None
        if part:
            part.land()

    def finish(self) -> None:
        """5. Send the rest, with all gradients that there are; give each piece its own."""
        while self.left:
            self.send()
        self.land()
        for part in self.parts:
            part.give()

    def average(self) -> None:
        """Average what is left; or, if nothing was since the last step, take part in that."""
        self.check()
        training = [part for part in self.parts if part.trains]
        left = any(each.grad is not None for part in training for each in part.parameters)
        if left or not self.rounds:
            self.begin()
            self.finish()

    def done(self) -> None:
        """A step is over: what comes now is not added to what there was."""
        self.rounds = 0
        for part in self.parts:
            part.stepped = True


class EarlyAverager(Averager):
    """Stage 2: does so while backward still makes other gradients."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self._backward: Backward | None = None

    def watch(self, parameters: Iterable[Any]) -> None:
        """Take these parameters' gradients as autograd makes them."""
        trained = [each for each in parameters if each.requires_grad]
        if self._backward:
            self._backward.watch(trained)
        elif trained:
            asked = attrgetter("synchronising")
            self._backward = Backward(trained, self, asked, NAME, "build the optimizer anew")

    def check(self) -> None:
        """Raise RuntimeError if a backward raised, or is under way."""
        if self._backward:
            self._backward.check()

    @torch.no_grad()
    def backward_begins(self, sync: bool) -> None:
        """Autograd has made the first gradient."""
        if sync:
            self.begin()

    @torch.no_grad()
    def gradient_arrives(self, parameter: Parameter, sync: bool) -> None:
        """Autograd has made a gradient."""
        if sync:
            self._check_arrival(parameter, self.part_of[parameter])
            self.arrived(parameter)

    @torch.no_grad()
    def backward_ends(self, sync: bool) -> None:
        """Autograd has made all gradients."""
        if sync:
            self.finish()
        assert self._backward
        self._backward.close()

    def _check_arrival(self, parameter: Parameter, part: Part) -> None:
        where = f"rank {dist.get_rank()}: {NAME}"
        if parameter.grad is None:
            raise RuntimeError(
                f"{where}: expected a gradient of {part.name_of(parameter)}, got None: a hook that "
                "was registered before has taken it away"
            )
        if part not in self.left:
            raise RuntimeError(
                f"{where}: {part.name_of(parameter)} got a second gradient in one backward, after "
                "its part had left. A checkpointed module that is used twice does that: pass "
                "use_reentrant=False to torch.utils.checkpoint, or stage=1 here"
            )
