"""Ways to spoil what a class of the project sends, whatever the class: by another comm.

They run on the ranks, so this module imports little.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import torch

from minidist.comm.comm import Around, Comm, Pending, Start

REDUCES = ("all_reduce", "reduce_scatter")


class Spoiled(Around):
    """A comm that does something to a tensor before it travels; `kept` is for what it remembers."""

    def __init__(self, comm: Comm, spoil: Spoil) -> None:
        super().__init__(comm)
        self.spoil, self.kept = spoil, list[Any]()

    def around(self, name: str, full: torch.Tensor, call: Start, async_op: bool) -> Pending:
        if self.spoil is unsent and name == "broadcast":
            return None
        self.spoil(self, name, full)
        if self.spoil is not waits:
            return call(async_op)
        call(False)
        return Done() if async_op else None


class Done:
    """The handle of a call whose result is there."""

    span = None

    def wait(self) -> bool:
        return True


Spoil = Callable[[Spoiled, str, torch.Tensor], object]


def scaled(by: Callable[[int], float]) -> Spoil:
    """What is reduced is too large by a factor that depends on the number of ranks."""

    def scale(comm: Spoiled, name: str, full: torch.Tensor) -> None:
        if name in REDUCES:
            full *= by(comm.ranks)

    return scale


def unsent(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """Every rank starts with its own weights."""


def alone(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """The gradients of all ranks but the first are dropped."""
    if name in REDUCES and comm.rank:
        full.zero_()


def rounded(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """What is reduced has been rounded to float32."""
    if name in REDUCES:
        full.copy_(full.float())


def stale(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """What is reduced is what the last call should have reduced."""
    if name in REDUCES:
        same = [each for each in comm.kept if each.shape == full.shape]
        comm.kept.append(full.clone())
        full.copy_(same[-1]) if same else full.zero_()


def twice(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """Everything has travelled before, in vain."""
    comm._comm.all_reduce(full.clone())


def keeps(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """What has travelled is never freed."""
    comm.kept.append(full.clone())


def hoards(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """What has travelled is never freed, and kept where torch's allocator does not see it."""
    comm.kept.append(array("d", full.flatten().tolist()))


def waits(comm: Spoiled, name: str, full: torch.Tensor) -> None:
    """Each call is waited for where it is made."""


RESULTS: dict[str, Spoil] = {
    "sums": scaled(lambda ranks: ranks),
    "divides twice": scaled(lambda ranks: 1 / ranks),
    "divides by two": scaled(lambda ranks: ranks / 2),
    "own weights": unsent,
    "own gradients": alone,
    "float32": rounded,
    "stale": stale,
}
COSTS: dict[str, Spoil] = {"twice": twice, "keeps": keeps, "hoards": hoards, "waits": waits}


def spoiled(train: Callable[..., Any], spoil: Spoil) -> Callable[..., Any]:
    """A milestone's `train` whose class is given a spoiled comm."""

    def spoiling(kind: Any, net: Any, comm: Comm, *args: Any) -> Any:
        return train(kind, net, Spoiled(comm, spoil), *args)

    return spoiling
