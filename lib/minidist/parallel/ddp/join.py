"""Ranks with different numbers of batches: those that have run out stand in for themselves.

[Note: standing in] A rank without a batch must still take part in what the others send, or they
wait for ever. So within `join` a rank says what comes before it comes: a forward that broadcasts
buffers, a backward that is averaged. A rank that has run out listens, and plays the part that is
announced with zeros. Each announcement is one all-reduce of an integer for each rank. PyTorch
announces forwards only, and takes for granted that one backward follows each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from minidist.collectives.runtime.group import wire_device
from minidist.comm.coalesced import broadcast_coalesced
from minidist.comm.comm import Comm
from minidist.parallel.ddp.weights import weight_of

FORWARD, BACKWARD, WEIGH = "forward", "backward", "weigh"
CODES: list[str | None] = [None, FORWARD, BACKWARD, WEIGH]  # what a rank says; None: it has run out


class Joinable(Protocol):
    """What `join` must know of the wrapper.

    Attributes:
        joining: None outside `join`. Within, it is told what comes before every forward that
            broadcasts buffers, every averaged backward and `weigh`.
        weight: of this rank's gradients in the mean of all ranks; 1 if all count alike.
    """

    comm: Comm
    module: nn.Module
    broadcast_buffers: bool
    joining: Joining | None
    weight: float

    def shadow_backward(self) -> None:
        """Take part in a backward that is averaged, with zeros."""


@contextmanager
def join(
    wrapper: Joinable,
    divide_by_initial_world_size: bool = True,
    enable: bool = True,
    throw_on_early_termination: bool = False,
) -> Iterator[None]:
    """Let ranks have different numbers of batches in the training loop within it.

    As `torch.nn.parallel.DistributedDataParallel.join`. Buffers come from the highest rank that
    still has batches. At the end all ranks have the model of the last one to run out, the highest
    if they are several; what its optimizer holds is not copied.

    Args:
        wrapper: every rank's.
        divide_by_initial_world_size: gradients are divided by the number of all ranks, so that
            each batch weighs the same throughout; else by that of those that still have batches.
            Where `weigh` is called, neither counts.
        enable: if False nothing is done, for loops that are known to be even.
        throw_on_early_termination: raise on all ranks as soon as one has run out.

    Raises:
        RuntimeError: on all ranks: they do not announce the same; throw_on_early_termination. Or,
            on one, it is within `join` already.
    """
    if not enable:
        yield
        return
    if wrapper.joining is not None:
        raise RuntimeError(f"rank {dist.get_rank()}: join: this model is within join already")
    joining = Joining(wrapper, divide_by_initial_world_size, throw_on_early_termination)
    wrapper.joining = joining
    try:
        yield
        joining.stand_in()
    finally:
        wrapper.joining, wrapper.weight = None, 1.0


class Joining:
    """One rank's part in what the ranks tell each other; its arguments are those of `join`."""

    def __init__(self, wrapper: Joinable, by_all: bool, strict: bool) -> None:
        self.wrapper, self.comm, self.by_all, self.strict = wrapper, wrapper.comm, by_all, strict
        self.going = list(range(wrapper.comm.ranks))  # ranks of the group that have batches
        self.weighed = False  # since the last backward

    def announce(self, what: str) -> int:
        """Say what this rank is about to do; the others do the same, or have run out.

        Args:
            what: FORWARD, BACKWARD or WEIGH.

        Returns:
            the group's rank that broadcasts buffers.

        Raises:
            RuntimeError: see `join`.
        """
        self._exchange(what)
        if what == BACKWARD and not (self.by_all or self.weighed):
            self.wrapper.weight = self.comm.ranks / len(self.going)
        self.weighed = what == WEIGH or (self.weighed and what != BACKWARD)
        return self.going[-1]

    def stand_in(self) -> None:
        """Do what the others announce, until no rank has a batch; then take the model of one."""
        while what := self._exchange(None):
            if what == FORWARD:
                broadcast_coalesced(self.wrapper.module.buffers(), self.comm, self.going[-1])
            elif what == WEIGH:
                weight_of(0, self.comm)
            else:
                self.wrapper.shadow_backward()
        module = self.wrapper.module
        buffers = module.buffers() if self.wrapper.broadcast_buffers else []
        broadcast_coalesced(chain(module.parameters(), buffers), self.comm, self.going[-1])

    def _exchange(self, mine: str | None) -> str | None:
        """What those ranks announce that are still going; None if there are none."""
        table = torch.zeros(self.comm.ranks, dtype=torch.int32, device=wire_device(self.comm.group))
        table[self.comm.rank] = CODES.index(mine)
        self.comm.all_reduce(table)
        codes: list[int] = table.tolist()
        said = {rank: CODES[code] for rank, code in enumerate(codes)}
        going = [rank for rank, what in said.items() if what]
        if not going:
            return None
        self.going = going
        if len({said[rank] for rank in going}) > 1:
            raise RuntimeError(f"join: the ranks are not at the same point: {self._listed(said)}")
        if self.strict and len(going) < self.comm.ranks:
            raise RuntimeError(f"join: not all ranks have a batch: {self._listed(said)}")
        return said[going[0]]

    def _listed(self, said: dict[int, str | None]) -> str:
        ranks = dist.get_process_group_ranks(self.comm.group)
        return "; ".join(
            f"rank {ranks[rank]}: {what or 'has run out'}" for rank, what in said.items()
        )
