"""A unit of FSDP: modules whose parameters are sharded, and whole only while these compute.

`Unit` is FSDP. Hooks on its module's forward and in backward call its four methods::

    pre_forward      all-gather the parameters              } for the next unit too:
    post_forward     free them                              } it is gathered while
    pre_backward     all-gather them again                  } this one computes
    post_backward    free them; reduce-scatter the gradients, write this rank's into shard.grad

What that does to memory is in `param_group.py`.

[Note: the order of units] Nothing says in advance which unit runs next, but a step is like the one
before. So each unit begins to gather the one that followed it in the last forward; in backward, the
one whose forward ended before its own. A wrong guess costs an all-gather, whose result is freed
unused. All ranks guess alike, because their orders are alike.

[Note: unused parameters] All ranks must send as much, so a parameter without a gradient on this
rank is sent as zeros. If no rank has a gradient, `shard.grad` has to stay as it was, or None, as in
one process that does not use the parameter. So at the end of backward one small all-reduce tells
which parameters any rank has used.

[Note: checkpoints] Activation checkpointing runs a forward a second time, during backward. Then the
parameters stay unsharded until their backward is over, and nothing is prefetched.

[Note: units of several modules] They are gathered when the first one's forward begins, and freed
when the last one's ends, or the outermost forward. In backward they are gathered when it enters one
of them, and freed when it has left the one that ran first. So modules that share a weight, such as
an embedding and the head of a language model, use the same unsharded tensor.

After Rajbhandari et al. (2020), *ZeRO*, stage 3; Zhao et al. (2023), *PyTorch FSDP*; and PyTorch's
`torch.distributed.fsdp.fully_shard`, whose words these are.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from enum import Enum, auto
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is

from minidist.comm.comm import Comm, Handle, noted, on_some_rank
from minidist.parallel.autograd.backward import BackwardPass, cast, in_backward, on_entry, on_exit
from minidist.parallel.fsdp.param_group import MixedPrecisionPolicy, ParamGroup, ParamInfo
from minidist.profiler.spans import COMMUNICATION, COMPUTE
from minidist.profiler.timeline import NOTHING, Mark, mark


class ShardedState(Enum):
    SHARDED = auto()
    UNSHARDING = auto()  # an all-gather has begun, and nothing has used its result
    UNSHARDED = auto()


class TrainingState(Enum):
    IDLE = auto()
    FORWARD = auto()
    POST_FORWARD = auto()  # its parameters are kept unsharded for backward
    BACKWARD = auto()


class Unit:
    """The parameters of wrapped modules, without those of wrapped modules inside them.

    `agree` is called before each collective, with what it is for and whether it goes on in the
    background. It raises, or the handle that it returns does, unless all ranks are about to.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        infos: Sequence[Sequence[ParamInfo]],
        comms: Sequence[Comm],
        policy: MixedPrecisionPolicy,
        reshard_after_forward: bool | None,
        agree: Callable[[str, bool], Handle | None],
    ) -> None:
        # The first comm is between ranks that share each parameter, a second one between replicas.
        self.modules, self.comms, self.comm = modules, comms, comms[0]
        self.replicate = comms[1] if len(comms) == 2 else None
        self.policy, self.reshard_after_forward, self._agree = policy, reshard_after_forward, agree
        self.requires_gradient_sync = True
        self.sharded, self.training = ShardedState.SHARDED, TrainingState.IDLE
        self.name = "root"  # or the modules' names in the outermost one
        self.owner = f"rank {self.comm.rank} of {self.comm.ranks}"  # whose shards these are
        self.context = FSDPContext()  # shared by all units of the model
        self.groups = [ParamGroup(group, lambda: self.title, comms, policy) for group in infos]
        self._kinds = ", ".join(type(each).__name__ for each in modules)
        self.to_run: set[nn.Module] = set()  # modules still to come in a forward that has begun
        self._gathers: list[Handle] = []

    # ---- the life of a unit ----

    @eager
    def pre_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """1. Gather the parameters. Begin to gather the next unit's, while this one computes."""
        first, again = not self.to_run, in_backward()  # [Note: checkpoints]
        if first and not again:
            self.to_run = set(self.modules)
            self.context.begin_forward(self, module)
        self.unshard()
        if first and not again:
            self.training = TrainingState.FORWARD
            if following := self.context.following.get(self):
                following.begin_unshard()
        dtype = self.policy.param_dtype if self.policy.cast_forward_inputs else None
        inputs = cast((args, kwargs), dtype)
        leaves_here = first and self.training is not TrainingState.BACKWARD
        return on_exit(inputs, self.post_backward) if leaves_here else inputs

    @eager
    def post_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """2. Free them, also if forward raised. Autograd calls `pre_backward` at an output."""
        trains = self.training is not TrainingState.BACKWARD and on_entry(
            output, (args, kwargs), self.pre_backward
        )
        if not in_backward():
            self.to_run.discard(module)
            if not self.to_run or module is self.context.outermost:
                self.end_forward()
                self.context.end_forward(self, module, trains)
        return cast(output, self.policy.output_dtype)

    def end_forward(self) -> None:
        self.to_run.clear()
        reshards = self.reshard_after_forward
        if reshards is None:
            reshards = self is not self.context.units[0]
        if reshards or not torch.is_grad_enabled():
            self.reshard()
        elif self.sharded is not ShardedState.SHARDED:
            self.training = TrainingState.POST_FORWARD

    def pre_backward(self) -> None:
        """3. Gather them again. Begin to gather those of the unit that ran before this one."""
        if not self.context.backward.under_way:  # it is the first unit that backward comes to
            self.context.backward.begin(self.context.end_backward, self.device)
        if self.training is not TrainingState.BACKWARD:
            self.unshard()
            self.training = TrainingState.BACKWARD
            if previous := self.context.previous.get(self):
                previous.begin_unshard()

    @torch.no_grad()
    def post_backward(self) -> None:
        """4. Free them. Begin to average the gradients, of which this rank keeps its part."""
        self.reshard()
        flags = [group.take_gradients() for group in self.groups]
        if any(flags) and self.requires_gradient_sync:
            self.context.begin_reduction(self)

    def begin_unshard(self, async_op: bool = True) -> None:
        """Begin to gather the parameters, if they are sharded."""
        if self.sharded is not ShardedState.SHARDED or not self.groups:
            return
        what = f"unshard {self.name}"
        self._gathers = self.agree(what, async_op)
        with nullcontext() if async_op else mark(what, COMMUNICATION, self.device):
            for group in self.groups:
                gathered, shard = group.all_gather_buffers()
                if handle := self.comm.all_gather(gathered, shard, async_op):
                    self._gathers.append(noted(what, handle))
        self.sharded = ShardedState.UNSHARDING

    def unshard(self) -> None:
        """Make the parameters whole; returns when they are."""
        self.begin_unshard(async_op=False)
        if self.sharded is ShardedState.UNSHARDING:
            wait_for(self._gathers)
            for group in self.groups:
                group.use_gathered()
            self.sharded = ShardedState.UNSHARDED

    def reshard(self) -> None:
        """Free the unsharded parameters; this rank's shard stays."""
        if self.sharded is ShardedState.UNSHARDING:
            self.unshard()  # what is on its way must arrive
        if self.sharded is ShardedState.UNSHARDED:
            for group in self.groups:
                group.free()
        self.sharded, self.training = ShardedState.SHARDED, TrainingState.IDLE

    def agree(self, what: str, async_op: bool) -> list[Handle]:
        # In the background on the CPU alone: a GPU's collective cannot be stopped later.
        handle = self._agree(what, async_op and self.device.type == "cpu")
        return [handle] if handle else []

    @property
    def device(self) -> torch.device:
        """The device of its shards, which may be made after the unit; the CPU if it has none."""
        return self.groups[0].local.device if self.groups else torch.device("cpu")

    @property
    def title(self) -> str:
        outermost = self is self.context.units[0]
        return f"the outermost unit ({self._kinds})" if outermost else f"unit '{self.name}'"


class ReducedGroup(NamedTuple):
    unit: Unit
    group: ParamGroup
    present: list[bool]  # which parameters had a gradient here
    mean: torch.Tensor | None  # kept if not all had one: it may still be wanted


class Reduction:
    """A unit's gradients on their way: reduce-scattered, averaged over the replicas, written."""

    def __init__(self, unit: Unit) -> None:
        what, self.unit, self.replicate = f"reduce-scatter {unit.name}", unit, unit.replicate
        ranks = unit.comm.ranks * (unit.replicate.ranks if unit.replicate else 1)
        self.handles = unit.agree(what, async_op=True)
        self.groups: list[ReducedGroup] = []
        self.means: list[torch.Tensor] = []  # one per group: this rank's part
        for group in (each for each in unit.groups if any(each.trainable)):
            gradients, present = group.pack_gradients(1 / ranks)
            mean = gradients.new_empty(group.layout.shard_numel)
            handle = unit.comm.reduce_scatter(mean, gradients, async_op=True)
            self.handles.append(noted(what, handle))
            kept = None if all(present) else mean
            self.groups.append(ReducedGroup(unit, group, present, kept))
            self.means.append(mean)
            del gradients

    def advance(self) -> bool:
        """Wait for what is under way, and do what comes next; return whether that was the last."""
        wait_for(self.handles)
        if self.replicate:
            what, comm, self.replicate = f"all-reduce {self.unit.name}", self.replicate, None
            for mean in self.means:
                self.handles.append(noted(what, comm.all_reduce(mean, async_op=True)))
            return False
        for each, mean in zip(self.groups, self.means, strict=True):
            each.group.write_gradients(mean, each.present)
        return True


class FSDPContext:
    """State that the units of one model share while forward and backward run."""

    def __init__(self) -> None:
        self.units: list[Unit] = []  # the outermost first
        # In this backward, by the ranks that reduced: [Note: unused parameters].
        self.reduced: defaultdict[object, list[ReducedGroup]] = defaultdict(list)
        self.following: dict[Unit, Unit] = {}  # unit → the one that the last forward began next
        self.previous: dict[Unit, Unit] = {}  # unit → the one whose forward ended before
        self.backward = BackwardPass()
        self.outermost: nn.Module | None = None  # the one whose forward contains all others
        self._reductions: list[Reduction] = []
        self._begun: list[Unit] = []  # the units of this forward, in order
        self._ended: list[Unit] = []  # those of them that backward will reach, in order
        self._forward_mark: Mark = NOTHING

    def begin_forward(self, unit: Unit, module: nn.Module) -> None:
        if self.outermost is None:
            self.outermost, self._begun, self._ended = module, [], []
            self._forward_mark = mark("forward", COMPUTE, unit.device)
            for each in self.units:
                if each.training is TrainingState.POST_FORWARD:
                    each.reshard()  # an optimizer may have updated the shards
        self._begun.append(unit)

    def end_forward(self, unit: Unit, module: nn.Module, trains: bool) -> None:
        if trains:
            self._ended.append(unit)
        if module is self.outermost:
            self.outermost, self.following = None, dict(pairwise(self._begun))
            self.previous = {after: before for before, after in pairwise(self._ended)}
            self._forward_mark.end()
            for each in self.units:
                if each.to_run:  # [Note: units of several modules]
                    each.end_forward()
                if each.sharded is ShardedState.UNSHARDING:  # gathered in vain
                    each.reshard()

    @torch.no_grad()
    def end_backward(self) -> None:
        for unit in reversed(self.units):
            if unit.training is not TrainingState.FORWARD:
                unit.post_backward()  # nothing else calls it where no input needs a gradient
        while self._reductions:
            self._advance_reductions()
        self._write_unused()
        self.backward.mark.end()

    def begin_reduction(self, unit: Unit) -> None:
        """Let a unit's gradients follow those that are on their way: at most one in each step."""
        self._advance_reductions()
        self._reductions.append(Reduction(unit))

    def _advance_reductions(self) -> None:
        for each in self._reductions[:]:
            if each.advance():
                self._reductions.remove(each)
                between = tuple(comm.group for comm in each.unit.comms)
                self.reduced[between] += each.groups

    def _write_unused(self) -> None:
        """Learn which parameters have a gradient on some rank: [Note: unused parameters]."""
        for members in self.reduced.values():
            unit = members[0].unit
            present = [flag for each in members for flag in each.present]
            used = iter(on_some_rank(present, unit.device, *unit.comms))
            for each in members:
                missed = [next(used) and not here for here in each.present]
                if each.mean is not None:
                    each.group.write_gradients(each.mean, missed)
        self.reduced.clear()

    def recover(self) -> None:
        """After a backward that raised: drop all that was under way."""
        if self.backward.raised:
            self.backward.close()
            self._reductions.clear()
            self.reduced.clear()
            for unit in self.units:
                for group in unit.groups:
                    group.drop_gradients()
                unit.reshard()


def wait_for(handles: list[Handle]) -> None:
    for handle in handles:
        handle.wait()
    handles.clear()
