"""The wrappers, broken in the ways in which they are usually broken.

Most faults sit at their seam: a comm that does one thing wrong. What is awaited there is done at
once, so that a fault shows in the same way each time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import minidist
from minidist import ReduceOp
from minidist.comm.comm import Ours
from tests.proof.cases import MAKE, Case, Made, Way, bare


class Done:
    """The handle of what is done already."""

    span = None

    def wait(self) -> bool:
        return True


class AtOnce(Ours):
    """No fault; the others change one thing: of gradients that are reduced, of what is gathered."""

    def all_reduce(self, tensor, op=ReduceOp.SUM, async_op=False):  # type: ignore[no-untyped-def]
        own = tensor.clone()
        super().all_reduce(tensor, op)
        if tensor.is_floating_point():  # flags are no gradients
            self.reduced(tensor, own)
        return Done() if async_op else None

    def reduce_scatter(self, output, input, op=ReduceOp.SUM, async_op=False):  # type: ignore[no-untyped-def]
        super().reduce_scatter(output, input, op)
        self.reduced(output, input.chunk(self.ranks)[self.rank])
        return Done() if async_op else None

    def all_gather(self, output, input, async_op=False):  # type: ignore[no-untyped-def]
        super().all_gather(output, input)
        self.gathered(output, input)
        return Done() if async_op else None

    def reduced(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        """Spoil the mean of what each rank has put in, where `own` is this rank's."""

    def gathered(self, full: torch.Tensor, part: torch.Tensor) -> None:
        """Spoil what has been gathered, where `part` is this rank's."""


class NeverDivides(AtOnce):
    def reduced(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        mean *= self.ranks


class OwnGradientsAlone(AtOnce):
    def reduced(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        mean.copy_(own)


class SkipsABucket(AtOnce):
    """Every third that it is handed."""

    count = 0

    def reduced(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        self.count += 1
        if self.count % 3 == 0:
            mean.copy_(own)


class StaleGradients(AtOnce):
    """What a buffer that is read before its reduction has ended holds: the last step's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.last: dict[int, torch.Tensor] = {}

    def reduced(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        new = mean.clone()
        mean.copy_(self.last.get(len(new), new))
        self.last[len(new)] = new


class LosesPrecision(AtOnce):
    def reduced(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        mean.copy_(mean.float())


class OneBitOff(AtOnce):
    """On the last rank."""

    def reduced(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        self.gathered(mean, own)

    def gathered(self, full: torch.Tensor, part: torch.Tensor) -> None:
        if self.rank == self.ranks - 1:
            full[:1] = torch.nextafter(full[:1], torch.full_like(full[:1], torch.inf))


class AnothersSlice(AtOnce):
    """The classic: every rank gets the slice that its neighbour keeps."""

    def reduce_scatter(self, output, input, op=ReduceOp.SUM, async_op=False):  # type: ignore[no-untyped-def]
        return super().reduce_scatter(output, input.roll(len(input) // self.ranks), op, async_op)


class OrdersItsBucketsItself(AtOnce):
    """On odd ranks the other way round."""

    def all_reduce(self, tensor, op=ReduceOp.SUM, async_op=False):  # type: ignore[no-untyped-def]
        turned = tensor.flip(0) if self.rank % 2 else tensor.clone()
        done = super().all_reduce(turned, op, async_op)
        tensor.copy_(turned.flip(0) if self.rank % 2 else turned)
        return done


class GathersInItsOwnOrder(AtOnce):
    def gathered(self, full: torch.Tensor, part: torch.Tensor) -> None:
        full.copy_(full.roll(part.numel() * self.rank))


class NeverGathers(AtOnce):
    def all_gather(self, output, input, async_op=False):  # type: ignore[no-untyped-def]
        return Done() if async_op else None


class NeverBroadcasts(AtOnce):
    def broadcast(self, tensor, group_src=0, async_op=False):  # type: ignore[no-untyped-def]
        return Done() if async_op else None


class IgnoresWeights(minidist.DistributedDataParallel):
    def weigh(self, samples: int) -> None:
        pass


class NeverSuspends(minidist.DistributedDataParallel):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


class ByHand(nn.Module):
    """DDP as one would write it first; or wrong, reducing the parameter that a hook is handed."""

    def __init__(self, net: nn.Module, wrong: bool = False) -> None:
        super().__init__()
        self.module = net
        for tensor in net.state_dict().values():
            dist.broadcast(tensor, 0)
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(
                self.average if wrong else lambda p: self.average(p.grad)
            )

    def average(self, tensor: torch.Tensor) -> None:
        with torch.no_grad():
            tensor /= dist.get_world_size()
            dist.all_reduce(tensor)

    def forward(self, *args: torch.Tensor) -> Any:
        for buffer in self.module.buffers():
            dist.broadcast(buffer, 0)
        return self.module(*args)


class Mutant(NamedTuple):
    """`noticed`: what the proof must complain of; of nothing where nothing is broken."""

    case: Case
    make: Way
    noticed: str


def over(kind: type[AtOnce], way: str, noticed: str) -> Mutant:
    """A way to train, over a faulty comm."""

    def make(net: nn.Module, case: Case, comm: object) -> Made:
        return MAKE[way.split()[0]](net, case, kind(algorithm="ring"))

    return Mutant(Case(way, 3, steps=4), make, noticed)


def around(wrap: Any, noticed: str, **fields: Any) -> Mutant:
    """A faulty DDP."""

    def make(net: nn.Module, case: Case, comm: object) -> Made:
        model = wrap(net, comm)
        return bare(net, case)._replace(model=model, quiet=getattr(model, "no_sync", None))

    return Mutant(Case("ddp overlapped", 3, **{"steps": 4} | fields), make, noticed)


SHARDED = ["zero 1", "zero 2", "fsdp dim0", "fsdp flat"]
ALL = ["ddp overlapped", *SHARDED]
FAULTS: dict[type[AtOnce], tuple[list[str], str]] = {
    AtOnce: (ALL, ""),
    NeverDivides: (ALL, "the gradients"),
    OwnGradientsAlone: (ALL, "the gradients"),
    SkipsABucket: (ALL, "the gradients"),
    StaleGradients: (ALL, "the gradients"),
    LosesPrecision: (ALL, "the gradients"),
    NeverBroadcasts: (ALL, "the losses"),
    OneBitOff: (ALL, "the bits"),
    OrdersItsBucketsItself: (["ddp overlapped"], "the gradients"),
    AnothersSlice: (SHARDED, "the gradients"),
    GathersInItsOwnOrder: (SHARDED, "the bits"),
    NeverGathers: (SHARDED, "the bits"),
}
MUTANTS = {
    f"{kind.__name__}, {way}": over(kind, way, noticed)
    for kind, (ways, noticed) in FAULTS.items()
    for way in ways
} | {
    "whole, by hand": around(lambda net, comm: ByHand(net), "", model="convnet"),
    "the hook is handed the parameter": around(
        lambda net, comm: ByHand(net, wrong=True), "the gradients"
    ),
    "no broadcast of buffers": around(
        lambda net, comm: minidist.DistributedDataParallel(net, comm=comm, broadcast_buffers=False),
        "the buffers",
        model="convnet",
    ),
    "weights ignored": around(
        lambda net, comm: IgnoresWeights(net, comm=comm), "the gradients", shards="uneven"
    ),
    "no_sync ignored": around(
        lambda net, comm: NeverSuspends(net, comm=comm),
        "the traffic",
        backwards="two, one quiet",
        comm="counted",
    ),
}
