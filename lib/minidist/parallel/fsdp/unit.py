"""A unit: parameters that are made whole together, used, and sharded again.

`Unit` moves the data; when it does so is decided in `minidist.parallel.fsdp.fully_shard`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from minidist.collectives.call import Run, collective
from minidist.collectives.checks.agreement import wanted
from minidist.comm.comm import Comm, Handle
from minidist.parallel.fsdp.mixed import Dtypes
from minidist.parallel.fsdp.param_group import Block, Held
from minidist.profiler.spans import COMMUNICATION
from minidist.profiler.timeline import mark, note


class Unit:
    """The parameters of one wrapped module, without those of wrapped modules inside it.

    Args:
        module: the wrapped one.
        groups: its parameters; those of one block together.
        layout: "dim0" or "flat".
        comm: between the ranks that share each parameter.
        replicate: between the ranks that have the same parts; None if only this one has.
        policy: of dtypes.

    Attributes:
        name: of the module in the outermost wrapped one; "" for that one itself.
        blocks: its parameters; one gather and one reduction each.
        module, comm, replicate, policy: as passed.
        whole: whether the module's parameters are the whole ones now.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Sequence[Sequence[Held]],
        layout: str,
        comm: Comm,
        replicate: Comm | None,
        policy: Dtypes,
    ) -> None:
        self.name, self.module, self.policy = "", module, policy
        self.comm, self.replicate = comm, replicate
        self._kind = type(module).__name__
        self.blocks = [
            Block(group, self, layout, comm, policy.param_dtype, policy.reduce_dtype)
            for group in groups
        ]
        self.whole = False
        self._under_way: list[Handle] | None = None

    # ---- the parameters ----

    def begin_unshard(self, async_op: bool = True) -> bool:
        """Begin to gather the parameters; False if they are whole, or that was begun before."""
        if self.whole or self._under_way is not None:
            return False
        if not self.blocks:
            self.whole = True
            return False
        what = f"unshard {self.short}"
        handles = [same_call(what, self.comm, self.device, async_op)]
        with mark(what, COMMUNICATION, self.device) if not async_op else nullcontext():
            for block in self.blocks:
                handle = block.gather(self.comm, async_op)
                handles.append(handle)
                if handle:
                    note(what, COMMUNICATION, handle)
        self._under_way = [handle for handle in handles if handle]
        return True

    def unshard(self) -> None:
        """Make the parameters whole."""
        self.begin_unshard(async_op=False)
        if self._under_way is not None:
            handles, self._under_way = self._under_way, None
            for handle in handles:
                handle.wait()
            for block in self.blocks:
                block.gathered()
            self.whole = True

    def reshard(self) -> None:
        """Keep this rank's parts of the parameters alone."""
        if self._under_way is not None:
            self.unshard()  # what is on its way must arrive
        if self.whole:
            for block in self.blocks:
                block.free()
            self.whole = False

    def parameters(self) -> list[Parameter]:
        """The whole ones; there are none before the first time that they are gathered."""
        return [whole for block in self.blocks for whole in block.wholes]

    @contextmanager
    def whole_parameters(self) -> Iterator[None]:
        """Inside, the module's parameters are whole, to be read; all ranks must come here."""
        before = self.whole
        self.unshard()
        try:
            yield
        finally:
            if not before:
                self.reshard()

    # ---- the gradients ----

    @property
    def has_gradients(self) -> bool:
        """Whether there are whole gradients that wait to be averaged."""
        return any(block.gradients.wait for block in self.blocks)

    def keep_gradients(self) -> None:
        """Keep this backward's whole gradients, to be averaged with a later one's."""
        for block in self.blocks:
            block.gradients.keep()

    def begin_reduce(self) -> list[Reduction]:
        """Begin to average the gradients over the ranks."""
        what = f"reduce-scatter {self.short}"
        agreed = same_call(what, self.comm, self.device, True)
        return [
            Reduction(self, block, what, agreed if index == 0 else None)
            for index, block in enumerate(block for block in self.blocks if block.trains)
        ]

    # ---- what it is called ----

    @property
    def device(self) -> torch.device:
        """Where its parameters are; the CPU if it has none."""
        return self.blocks[0].local.device if self.blocks else torch.device("cpu")

    @property
    def short(self) -> str:
        """Its name in a timeline."""
        return self.name or "root"

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"unit '{self.name}'" if self.name else f"the outermost unit ({self._kind})"

    @property
    def where(self) -> str:
        """The same with this rank's number."""
        return f"rank {dist.get_rank()}: {self.title}"


class Reduction:
    """One block's gradients on their way: reduce-scattered, then all-reduced between replicas."""

    def __init__(self, unit: Unit, block: Block, what: str, agreed: Handle | None) -> None:
        self._block, self._replicate, self._what = block, unit.replicate, what
        ranks = unit.comm.ranks * (unit.replicate.ranks if unit.replicate else 1)
        self._table, self._absent = block.gradients.pack(1 / ranks)
        self._mean = self._table.new_empty(block.layout.shard_numel)
        handle = unit.comm.reduce_scatter(self._mean, self._table, async_op=True)
        assert handle is not None
        note(what, COMMUNICATION, handle)
        self._handles: list[Handle] = [agreed, handle] if agreed else [handle]
        self._scattered = False

    def advance(self) -> bool:
        """Wait for the step that is under way, and begin the next; whether there is none."""
        for handle in self._handles:
            handle.wait()
        self._handles = []
        if not self._scattered:
            self._scattered = True
            self._table.untyped_storage().resize_(0)  # a handle may still refer to it
            if self._replicate:
                again = self._replicate.all_reduce(self._mean, async_op=True)
                assert again is not None
                note(self._what.replace("reduce-scatter", "all-reduce", 1), COMMUNICATION, again)
                self._handles = [again]
                return False
        self._block.gradients.give(self._mean, self._absent)
        return True


class Reductions:
    """Those under way: at most one in each of its steps."""

    def __init__(self) -> None:
        self._flying: deque[Reduction] = deque()

    def begin(self, unit: Unit) -> None:
        """Let a unit's gradients follow those that are on their way."""
        self._advance()
        self._flying.extend(unit.begin_reduce())

    def finish(self) -> None:
        """Wait until all are there."""
        while self._flying:
            self._advance()

    def forget(self) -> None:
        """Let go of what is on its way."""
        self._flying.clear()

    def _advance(self) -> None:
        self._flying = deque(each for each in self._flying if not each.advance())


def same_call(what: str, comm: Comm, device: torch.device, async_op: bool) -> Handle | None:
    """Where checks are on, see that all ranks do the same to the same unit.

    On the CPU that may go on while this rank computes; on a GPU it is done before the collective
    is begun, which could not be ended.
    """
    if not wanted(None):
        return None
    apart = async_op and device.type == "cpu"
    return collective(f"fully_shard: {what}", comm.group, apart, True, _nothing)


def _nothing(_: object) -> Run:
    return lambda: None
