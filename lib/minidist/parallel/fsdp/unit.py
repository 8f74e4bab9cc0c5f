"""A unit of FSDP: a module whose parameters are sharded, and whole only while it computes.

`Unit` is FSDP. Hooks on the module's forward and in backward call its four methods::

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

After Rajbhandari et al. (2020), *ZeRO*, stage 3; Zhao et al. (2023), *PyTorch FSDP*; and PyTorch's
`torch.distributed.fsdp.fully_shard`, whose words these are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from enum import Enum, auto
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp

from minidist.comm.comm import Comm, Handle
from minidist.parallel.autograd.backward import BackwardPass, cast, in_backward, on_entry, on_exit
from minidist.parallel.fsdp.param_group import DtypePolicy, ParamGroup, ParamInfo
from minidist.profiler.spans import COMMUNICATION, COMPUTE
from minidist.profiler.timeline import NOTHING, Mark, mark, note


class UnitState(Enum):
    """What a unit's parameters are, and what it does with them."""

    SHARDED = auto()
    UNSHARDING = auto()  # an all-gather has begun, and nothing has used its result
    UNSHARDED = auto()  # by hand, or for the second forward of a checkpoint
    FORWARD = auto()  # unsharded, as in the two states below
    KEPT = auto()  # between forward and backward
    BACKWARD = auto()


class Unit:
    """The parameters of one wrapped module, without those of wrapped modules inside it.

    `agree` is called before each collective, with what it is for and whether it goes on in the
    background. It raises, or the handle that it returns does, unless all ranks are about to.
    """

    def __init__(
        self,
        module: nn.Module,
        infos: Sequence[Sequence[ParamInfo]],
        comms: Sequence[Comm],
        policy: DtypePolicy,
        reshard_after_forward: bool | None,
        agree: Callable[[str, bool], Handle | None],
    ) -> None:
        self.comms, self.comm = comms, comms[0]  # the ranks that share each parameter
        self.replicate = comms[1] if len(comms) == 2 else None  # those with the same shards
        self.policy, self.reshard_after_forward, self._agree = policy, reshard_after_forward, agree
        self.requires_gradient_sync = True
        self.state = UnitState.SHARDED
        self.name = "root"  # or, of a module inside it, the module's name there
        self.owner = f"rank {self.comm.rank} of {self.comm.ranks}"  # of the shards
        self.context = FSDPContext()  # shared by all units of the model
        self._kind = type(module).__name__
        self.groups = [ParamGroup(group, lambda: self.title, self.comm, policy) for group in infos]
        self._gathers: list[Handle] = []

    # ---- the life of a unit ----

    def pre_forward(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        """1. Gather the parameters. Begin to gather the next unit's, while this one computes."""
        if in_backward():  # [Note: checkpoints]
            self.unshard()
        else:
            self.context.begin_forward(self)
            self.unshard()
            self.state = UnitState.FORWARD
            if following := self.context.following.get(self):
                following.begin_unshard()
        dtype = self.policy.param_dtype if self.policy.cast_forward_inputs else None
        inputs = cast((args, kwargs), dtype)
        return inputs if self.state is UnitState.BACKWARD else on_exit(inputs, self.post_backward)

    def post_forward(self, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """2. Free them, also if forward raised. Autograd calls `pre_backward` at an output."""
        trains = self.state is not UnitState.BACKWARD and on_entry(
            output, (args, kwargs), self.pre_backward
        )
        if not in_backward():
            reshards = self.reshard_after_forward
            if reshards is None:
                reshards = self is not self.context.units[0]
            if reshards or not torch.is_grad_enabled():
                self.reshard()
            elif self.state is not UnitState.SHARDED:
                self.state = UnitState.KEPT
            self.context.end_forward(self, trains)
        return cast(output, self.policy.output_dtype)

    def pre_backward(self) -> None:
        """3. Gather them again. Begin to gather those of the unit that ran before this one."""
        self.context.begin_backward()
        if self.state is not UnitState.BACKWARD:
            self.unshard()
            self.state = UnitState.BACKWARD
            if previous := self.context.previous.get(self):
                previous.begin_unshard()

    @torch.no_grad()
    def post_backward(self) -> None:
        """4. Free them. Begin to average the gradients, of which this rank keeps its part."""
        self.reshard()
        found = [group.take_gradients() for group in self.groups]
        if any(found) and self.requires_gradient_sync:
            self.context.begin_reduction(self.reduce_gradients())

    # ---- what it does with its parameters and gradients ----

    def begin_unshard(self, async_op: bool = True) -> None:
        """Begin to gather the parameters, if they are sharded."""
        if self.state is not UnitState.SHARDED or not self.groups:
            return
        what = f"unshard {self.name}"
        self._gathers = self._agree_on(what, async_op)
        with nullcontext() if async_op else mark(what, COMMUNICATION, self.device):
            for group in self.groups:
                gathered, shard = group.all_gather_buffers()
                self._gathers += begun(what, self.comm.all_gather(gathered, shard, async_op))
        self.state = UnitState.UNSHARDING

    def unshard(self) -> None:
        """Make the parameters whole; returns when they are."""
        self.begin_unshard(async_op=False)
        if self.state is UnitState.UNSHARDING:
            wait_for(self._gathers)
            for group in self.groups:
                group.use_gathered()
            self.state = UnitState.UNSHARDED

    def reshard(self) -> None:
        """Free the unsharded parameters; this rank's shard stays."""
        if self.state is UnitState.UNSHARDING:
            self.unshard()  # what is on its way must arrive
        if self.state is not UnitState.SHARDED:
            for group in self.groups:
                group.free()
            self.state = UnitState.SHARDED

    def reduce_gradients(self) -> Iterator[None]:
        """Average the gradients over the ranks; pauses where it would wait for others."""
        what = f"reduce-scatter {self.name}"
        ranks = self.comm.ranks * (self.replicate.ranks if self.replicate else 1)
        handles = self._agree_on(what, async_op=True)
        reduced = []
        for group in (each for each in self.groups if any(each.trainable)):
            gradients, present = group.pack_gradients(1 / ranks)
            mean = gradients.new_empty(group.layout.shard_numel)
            handles += begun(what, self.comm.reduce_scatter(mean, gradients, async_op=True))
            reduced.append((group, mean, present))
            del gradients
        yield
        wait_for(handles)
        if self.replicate:
            what = f"all-reduce {self.name}"
            for _, mean, _ in reduced:
                handles += begun(what, self.replicate.all_reduce(mean, async_op=True))
            yield
            wait_for(handles)
        between = tuple(comm.group for comm in self.comms)
        for group, mean, present in reduced:
            group.write_gradients(mean, present)
            kept = None if all(present) else mean  # it may still be wanted
            self.context.reduced[between].append(Reduced(self, group, present, kept))

    def _agree_on(self, what: str, async_op: bool) -> list[Handle]:
        # In the background on the CPU alone: a GPU's collective cannot be stopped later.
        handle = self._agree(what, async_op and self.device.type == "cpu")
        return [handle] if handle else []

    # ---- what it is, and what it is called ----

    @property
    def device(self) -> torch.device:
        """Where its shards are, which may be made after the unit; the CPU if it has none."""
        return self.groups[0].local.device if self.groups else torch.device("cpu")

    @property
    def title(self) -> str:
        """Its name in messages."""
        outermost = self is self.context.units[0]
        return f"the outermost unit ({self._kind})" if outermost else f"unit '{self.name}'"


class Reduced(NamedTuple):
    """A group whose gradients were reduced."""

    unit: Unit
    group: ParamGroup
    present: list[bool]  # which parameters had a gradient here
    mean: torch.Tensor | None  # of the gradients, if not all had one


class FSDPContext:
    """What the units of one model share while forward and backward run."""

    def __init__(self) -> None:
        self.units: list[Unit] = []  # the outermost first
        # In this backward, by the ranks that reduced: [Note: unused parameters].
        self.reduced: defaultdict[object, list[Reduced]] = defaultdict(list)
        self.following: dict[Unit, Unit] = {}  # unit → the one that the last forward began next
        self.previous: dict[Unit, Unit] = {}  # unit → the one whose forward ended before
        self._backward = BackwardPass()
        self._reductions: list[Iterator[None]] = []
        self._outermost: Unit | None = None  # whose forward, now under way, all others are in
        self._begun: list[Unit] = []  # in this forward, in order
        self._ended: list[Unit] = []  # in this forward, in order, if backward will come to them
        self._forward_mark: Mark = NOTHING

    def begin_forward(self, unit: Unit) -> None:
        """A unit's forward begins."""
        if self._outermost is None:
            self._check_last_backward()
            self._outermost, self._begun, self._ended = unit, [], []
            self._forward_mark = mark("forward", COMPUTE, unit.device)
            for each in self.units:
                if each.state is UnitState.KEPT:  # an optimizer may have updated the shards
                    each.reshard()
        self._begun.append(unit)

    def end_forward(self, unit: Unit, trains: bool) -> None:
        """A unit's forward has ended; backward will come to it, or not."""
        if trains:
            self._ended.append(unit)
        if unit is self._outermost:
            self._outermost, self.following = None, dict(pairwise(self._begun))
            self.previous = {after: before for before, after in pairwise(self._ended)}
            self._forward_mark.end()
            for each in self.units:
                if each.state is UnitState.UNSHARDING:  # gathered in vain
                    each.reshard()

    def begin_backward(self) -> None:
        """Backward has reached a unit, maybe not the first one."""
        if self._backward.under_way:
            return
        self._check_last_backward()
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"rank {dist.get_rank()}: {self.units[0].title}: FSDP frees parameters that going "
                "back through this backward (create_graph=True) would need; train with "
                "DistributedDataParallel"
            )
        self._backward.begin(self.end_backward, self.units[0].device)

    @torch.no_grad()
    def end_backward(self) -> None:
        """Autograd has made all gradients: reduce the last ones, and wait for all."""
        for unit in reversed(self.units):
            if unit.state is not UnitState.FORWARD:
                unit.post_backward()  # of those whose inputs need no gradient
        while self._reductions:
            self._advance_reductions()
        self._write_unused()
        self._backward.mark.end()

    def begin_reduction(self, reduction: Iterator[None]) -> None:
        """Let a unit's gradients follow those that are on their way: at most one in each step."""
        self._advance_reductions()
        next(reduction)
        self._reductions.append(reduction)

    def _advance_reductions(self) -> None:
        self._reductions = [each for each in self._reductions if next(each, "end") is None]

    def _write_unused(self) -> None:
        """Learn which parameters have a gradient on some rank: [Note: unused parameters]."""
        for members in self.reduced.values():
            unit = members[0].unit
            present = [flag for each in members for flag in each.present]
            flags = torch.tensor(present, dtype=torch.uint8, device=unit.device)
            for comm in unit.comms:
                comm.all_reduce(flags, ReduceOp.MAX)
            if all(present):  # on a GPU, to read the flags is to wait
                continue
            used = iter(flags.tolist())
            for each in members:
                missed = [next(used) and not here for here in each.present]
                if each.mean is not None:
                    each.group.write_gradients(each.mean, missed)
        self.reduced.clear()

    def _check_last_backward(self) -> None:
        if self._backward.raised:
            raise RuntimeError(
                f"rank {dist.get_rank()}: {self.units[0].title}: its last backward raised; zero "
                "the gradients and call reshard() on the outermost module, on all ranks, before "
                "the next forward"
            )

    def recover(self) -> None:
        """After a backward that raised: drop all that was under way."""
        if self._backward.raised:
            self._backward.close()
            self._reductions.clear()
            self.reduced.clear()
            for unit in self.units:
                for group in unit.groups:
                    group.drop_gradients()
                unit.reshard()


def begun(what: str, handle: Handle | None) -> list[Handle]:
    """Record a collective in the timeline, if it goes on while this rank does something else."""
    if handle:
        note(what, COMMUNICATION, handle)
    return [handle] if handle else []


def wait_for(handles: list[Handle]) -> None:
    """Wait until all are done, and drop them."""
    for handle in handles:
        handle.wait()
    handles.clear()
