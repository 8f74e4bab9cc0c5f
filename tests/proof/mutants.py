"""Comms with one fault each, as ZeRO and FSDP are usually broken at their seam.

What is awaited there is done at once, so that a fault shows in the same way each time.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

import minidist
from minidist import ReduceOp
from minidist.comm.comm import Ours
from tests.proof.cases import TASKS, Case, Way, complaints, train, train_alone
from tests.proof.ddp_cases import Pool, pool


class Done:
    """The handle of what is done already."""

    span = None

    def wait(self) -> bool:
        return True


class AtOnce(Ours):
    """No fault; the others change one thing."""

    def reduce_scatter(self, output, input, op=ReduceOp.SUM, async_op=False):  # type: ignore[no-untyped-def]
        self.scatter(output, input, op)
        return Done() if async_op else None

    def all_gather(self, output, input, async_op=False):  # type: ignore[no-untyped-def]
        self.gather(output, input)
        return Done() if async_op else None

    def scatter(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        super().reduce_scatter(output, whole, op)

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        super().all_gather(output, part)


class NeverDivides(AtOnce):
    def scatter(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        super().scatter(output, whole, op)
        output *= self.ranks


class OwnGradientsAlone(AtOnce):
    def scatter(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        output.copy_(whole.chunk(self.ranks)[self.rank])


class AnothersSlice(AtOnce):
    """The classic: every rank gets the slice that its neighbour keeps."""

    def scatter(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        super().scatter(output, whole.roll(whole.numel() // self.ranks), op)


class StaleGradients(AtOnce):
    """What a slice that is read before it has come holds: what came the last time."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, torch.Tensor] = {}

    def scatter(self, output: torch.Tensor, whole: torch.Tensor, op: Any) -> None:
        super().scatter(output, whole, op)
        new = output.clone()
        output.copy_(self.last.get(len(new), new))
        self.last[len(new)] = new


class GathersInItsOwnOrder(AtOnce):
    def gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        super().gather(output, part)
        output.copy_(output.roll(part.numel() * self.rank))


class NeverGathers(AtOnce):
    def gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        pass


class OneBitOff(AtOnce):
    """On the last rank, in what it gathers of the first."""

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        super().gather(output, part)
        if self.rank == self.ranks - 1:
            output[:1] = torch.nextafter(output[:1], torch.full_like(output[:1], torch.inf))


STEPS = 4
FAULTS = {  # → what the proof must complain of
    AtOnce: "",
    NeverDivides: "the losses",
    OwnGradientsAlone: "the losses",
    AnothersSlice: "the losses",
    StaleGradients: "the losses",
    NeverGathers: "ends with other weights",
    GathersInItsOwnOrder: "ends with other weights",
    OneBitOff: "ends with other weights",
}


def faults(ranks: int, ways: list[str], make: Way) -> Iterator[tuple[str, type, list[str]]]:
    """Each way over each faulty comm; what the proof says of it."""
    wanted = [Case(TASKS[0], way, steps=STEPS) for way in ways]

    def run(samples: Pool) -> list[Any]:
        return [
            train(case, samples, lambda net, case, comm, kind=kind: make(net, case, kind()))
            for case, kind in itertools.product(wanted, FAULTS)
        ]

    found = zip(*minidist.launch(run, ranks, pool(), device="cpu", timeout=200), strict=True)
    alone = train_alone(TASKS[0], STEPS)
    for (case, kind), runs in zip(itertools.product(wanted, FAULTS), found, strict=True):
        known = {(name, TASKS[0]): alone for name in case.twins}
        yield case.way, kind, list(complaints(case, list(runs), known))
