"""ZeRO, stages 1 and 2: each rank keeps the optimizer's state of its own slices, and steps on them.

Under DDP every rank has the same optimizer state and makes the same step: N times the memory, and N
times the work, for one result. ZeRO deals both out. `Slices` is a step in three. `ZeroOptimizer`,
below it, is the optimizer that one uses in place of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast

import torch
from torch.autograd.graph import increment_version
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from minidist.collectives.call import Call, Run, collective
from minidist.comm.comm import Comm
from minidist.parallel.checks import choose_comm
from minidist.parallel.sharding.partition import MIB
from minidist.parallel.zero.arguments import check_arguments, refuse_scaler
from minidist.parallel.zero.averaging import Averager, EarlyAverager, Lender
from minidist.parallel.zero.bucket import Part
from minidist.parallel.zero.checks import (
    NAME,
    Unchanged,
    check_once,
    check_parameters,
    hold,
    holder,
    meet,
    nothing,
    same_groups,
)
from minidist.parallel.zero.param_groups import (
    Group,
    copy_hyper,
    in_order,
    named_in,
    parts_of,
    pieces_of,
)
from minidist.parallel.zero.state_dict import InSlices


class Slices:
    """Rank r steps on the r-th slice of every part of the parameters, and on no other."""

    inner: Optimizer  # over this rank's pieces; what it keeps for them is 1/N of the state

    def __init__(self, comm: Comm, gradients: Lender, agree: Run) -> None:
        self.comm, self.gradients, self.agree = comm, gradients, agree

    def take(self, parts: list[Part]) -> None:
        """Step on these from now on."""
        self.parts = parts
        self.gradients.take(parts)

    def step(self) -> None:
        """One step, after which all ranks have the same parameters."""
        self.gradients.average()  # 1. Each piece has the mean gradient, reduced or lent.
        self.agree()
        self.inner.step()  # 2. It is stepped on, where alone there is state for it.
        self.gather()  # 3. And all ranks get the slices of all.
        self.gradients.done()

    def gather(self) -> None:
        """Put every rank's slices into the parameters' memory; parts follow one another."""
        for handle in [part.gather(self.comm) for part in self.parts if part.trains]:
            handle.wait()
        for part in self.parts:
            increment_version(part.parameters)  # for autograd, which has not seen it


class ZeroOptimizer(InSlices):
    """An optimizer of which each rank keeps the state, and does the work, for 1/N of the elements.

    After `step()` all ranks have the same parameters: those that `optimizer_class` makes with the
    mean of all ranks' gradients. The parameters are from now on views of flat buffers. After
    Rajbhandari et al., *ZeRO* (2020), sections 5.1, 5.2 and 7.

    Args:
        params: parameters, (name, parameter) pairs or groups, as for any optimizer; alike on all
            ranks. They must not be moved to other memory afterwards.
        optimizer_class: one that treats each element alone, as SGD, Adam and AdamW do.
        process_group: the default group if None.
        stage: 1: state is sharded. 2: gradients too: `backward()` averages each part as soon as it
            is full, keeps this rank's slice of it, and leaves every `parameter.grad` None. So all
            ranks run backward equally often; one that has no loss at all may leave out the only one
            before a step.
        gradients: "averaged": DDP has done it (stage 1 only, where it is the default). "local":
            they are this rank's, and averaged here; stage 1 does it in `step()`, which then leaves
            `parameter.grad` None too. Those of one step are not added to those of the one before,
            zeroed or not; but to discard them before a step it takes this optimizer's zero_grad(),
            not the module's, and to clip them `minidist.clip_grad_norm_`. Parameters that no rank
            has used are left alone. Rank 0's parameters are given to all at the start.
        bucket_cap_mb: MiB that close a part. A part is what is averaged and gathered at once.
        comm: what the ranks talk through; `Ours(process_group)` if None.
        defaults: of `optimizer_class`, such as `lr`.

    Attributes:
        inner: the `optimizer_class` that steps on this rank's pieces.
        state: that of `inner`, so by piece.
        stage, gradients, comm: as passed, or chosen.

    Raises:
        TypeError, ValueError: of this rank's arguments; it names the rank, and the parameter.
        MismatchError: the ranks' parameters or groups differ, or (where checks are on) arguments,
            or hyper-parameters at a step.
        RuntimeError: at a step, of parameters that were moved; after a backward that raised.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: ProcessGroup | None = None,
        *,
        stage: int = 1,
        gradients: str | None = None,
        bucket_cap_mb: float = 25,
        comm: Comm | None = None,
        **defaults: Any,
    ) -> None:
        self.comm = choose_comm(process_group, comm)
        self.stage, self.gradients = stage, gradients or ("averaged" if stage == 1 else "local")
        kind = {"averaged": Lender}.get(self.gradients, EarlyAverager if stage == 2 else Averager)
        self._slices = Slices(self.comm, kind(self.comm), self._agree)
        self._built = False

        def prepare(call: Call) -> Run:
            call.agree_on("stage", stage)
            call.agree_on("gradients", gradients)
            call.agree_on("bucket_cap_mb", bucket_cap_mb)
            check_arguments(optimizer_class, stage, gradients, bucket_cap_mb)
            self._cap = bucket_cap_mb * MIB
            Optimizer.__init__(self, params, {})
            self.inner = self._slices.inner = optimizer_class(self._lay_out(0, []), **defaults)
            return nothing

        collective(NAME, self.comm.group, False, None, prepare)
        self.defaults = self.inner.defaults
        self._start_alike(0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step; every rank must call it.

        Args:
            closure: as in torch: computes the gradients anew, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._slices.step()
        copy_hyper(self.inner.param_groups, self.param_groups)
        return loss

    @torch.no_grad()
    def average(self) -> None:
        """Let each of `inner`'s pieces have the mean gradient, if it has not got it yet.

        `step()` does it. Who wants to see or clip gradients before does it too, on all ranks.
        """
        self._slices.gradients.average()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within it add up gradients on this rank, as whole ones, and send nothing.

        That is for stage 2. In stage 1 backward sends nothing, unless DDP does, which has its own.
        """
        gradients = self._slices.gradients
        before, gradients.synchronising = gradients.synchronising, False
        try:
            yield
        finally:
            gradients.synchronising = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients: the parameters' own, and this rank's averaged slices."""
        super().zero_grad(set_to_none)
        for part in self.parts:
            part.forget(set_to_none)

    def add_param_group(self, param_group: Group) -> None:
        """Train these parameters too, on all ranks; it raises as the constructor does.

        Args:
            param_group: "params", and hyper-parameters where they are not the defaults.
        """
        if not self._built:  # torch's constructor calls this for each group
            check_once(param_group)
            super().add_param_group(param_group)
            return
        first, before = len(self.param_groups), self.parts

        def prepare(_: Call) -> Run:
            self._slices.gradients.check()
            check_once(param_group)
            Optimizer.add_param_group(self, param_group)
            try:
                self.inner.add_param_group(*self._lay_out(first, before))
            except (TypeError, ValueError):
                del self.param_groups[first:]
                self._slices.take(before)
                raise
            return nothing

        collective(f"{NAME}.add_param_group", self.comm.group, False, None, prepare)
        self._start_alike(first)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks before it lets an optimizer step."""
        if self._slices.gradients.local:
            refuse_scaler()
        return False  # the scaler itself divides what is in `parameter.grad`

    @property
    def parts(self) -> list[Part]:
        """What is averaged and gathered at once, in the order in which it travels."""
        return self._slices.parts

    def _lay_out(self, first: int, before: list[Part]) -> list[Group]:
        """Lay the groups from number `first` on in parts; return groups of their pieces."""
        named = named_in(self.param_groups, first)
        check_parameters(list(chain(*named)), self.comm.group, self._slices.gradients.local)
        parts = [*before]
        for number, members in enumerate(named, start=first):
            parts += parts_of(members, number, self._cap, self.comm)
        self._slices.take(in_order(parts, [group["params"] for group in self.param_groups]))
        return pieces_of(self.param_groups[first:], parts)

    def _start_alike(self, first: int) -> None:
        """All ranks have laid out the groups from number `first` on."""
        copy_hyper(self.inner.param_groups, self.param_groups)
        same_groups(type(self.inner), self.param_groups, first, self.comm)
        new = list(chain(*(group["params"] for group in self.param_groups[first:])))
        gradients, self.state, self._built = self._slices.gradients, self.inner.state, True
        for part in self.parts:
            if gradients.local and part.group >= first and part.flat.numel:
                self.comm.broadcast(part.buffer)
        gradients.watch(new)
        gradients.look = Unchanged(self.param_groups, self.parts).check
        hold(new, self)

    def _agree(self) -> None:
        """All ranks are about to make the same step."""
        meet(f"{NAME}.step", self.comm, self.param_groups)
        copy_hyper(self.param_groups, self.inner.param_groups)


def holder_of(parameter: torch.Tensor) -> ZeroOptimizer | None:
    """The optimizer of which a parameter's memory is a part; None if there is none."""
    return cast("ZeroOptimizer | None", holder(parameter))
