"""DistributedDataParallel, broken in the ways in which it is usually broken.

Most faults sit at its seam: a comm that does one thing wrong. Whatever is awaited there is done at
once, so that a fault shows in the same way each time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import minidist
from minidist import ReduceOp
from minidist.comm.comm import Ours
from tests.proof.ddp_cases import Case, Wrap, ours


class Done:
    """The handle of what is done already."""

    span = None

    def wait(self) -> bool:
        return True


class AtOnce(Ours):
    """No fault; the others change what it does."""

    def __init__(self) -> None:
        super().__init__(algorithm="ring")

    def all_reduce(self, tensor: torch.Tensor, op: Any = ReduceOp.SUM, async_op: bool = False):  # type: ignore[no-untyped-def]
        self.reduce(tensor, op)
        return Done() if async_op else None

    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        super().all_reduce(tensor, op)


class NeverDivides(AtOnce):
    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        super().reduce(tensor, op)
        tensor *= self.ranks


class SkipsABucket(AtOnce):
    """Every third that it is handed."""

    count = 0

    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        self.count += 1
        if self.count % 3:
            super().reduce(tensor, op)


class ReducesACopy(AtOnce):
    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        super().reduce(tensor.clone(), op)


class KeepsTheLastStepsBucket(AtOnce):
    """What a buffer that is read before its reduction has ended gives."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, torch.Tensor] = {}

    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        super().reduce(tensor, op)
        new, size = tensor.clone(), len(tensor)
        tensor.copy_(self.last.get(size, new))
        self.last[size] = new


class OneBitOff(AtOnce):
    """On the last rank."""

    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        super().reduce(tensor, op)
        if self.rank == self.ranks - 1:
            tensor[:1] = torch.nextafter(tensor[:1], torch.full_like(tensor[:1], torch.inf))


class LosesPrecision(AtOnce):
    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        short = tensor.float()
        super().reduce(short, op)
        tensor.copy_(short)


class OrdersItsBucketsItself(AtOnce):
    """On odd ranks the other way round."""

    def reduce(self, tensor: torch.Tensor, op: Any) -> None:
        turned = tensor.flip(0) if self.rank % 2 else tensor.clone()
        super().reduce(turned, op)
        tensor.copy_(turned.flip(0) if self.rank % 2 else turned)


class NeverBroadcasts(AtOnce):
    def broadcast(self, tensor: torch.Tensor, group_src: int = 0, async_op: bool = False):  # type: ignore[no-untyped-def]
        return Done() if async_op else None


class IgnoresWeights(minidist.DistributedDataParallel):
    def weigh(self, samples: int) -> None:
        pass


class NeverSuspends(minidist.DistributedDataParallel):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


class ByHand(nn.Module):
    """DDP as one would write it first; with `fault`, as one would write it wrong.

    "parameter": reduces what a hook is handed, in the belief that it is the gradient.
    """

    def __init__(self, net: nn.Module, fault: str = "") -> None:
        super().__init__()
        self.module, self.synced = net, True
        for tensor in net.state_dict().values():
            dist.broadcast(tensor, 0)
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(
                self.handed if fault == "parameter" else self.reduce
            )

    def reduce(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if self.synced:
            self.handed(parameter.grad)

    def handed(self, tensor: torch.Tensor) -> None:
        with torch.no_grad():
            tensor /= dist.get_world_size()
            dist.all_reduce(tensor)

    def forward(self, *args: torch.Tensor) -> Any:
        for buffer in self.module.buffers():
            dist.broadcast(buffer, 0)
        return self.module(*args)


class Mutant(NamedTuple):
    """`noticed`: what the proof must complain of first; nothing of what is whole."""

    wrap: Wrap
    noticed: str
    case: Case


PLAIN = Case("mlp", 3, steps=3)
WITH_BUFFERS = Case("convnet", 3, steps=3)


def over(comm: type[AtOnce]) -> Wrap:
    return lambda net, case, _: ours(net, case, comm())


def as_class(kind: type[nn.Module], **options: Any) -> Wrap:
    return lambda net, case, comm: kind(net, comm=comm, **options)


MUTANTS = {
    "whole": Mutant(over(AtOnce), "", PLAIN),
    "whole, by hand": Mutant(lambda net, case, comm: ByHand(net), "", WITH_BUFFERS),
    "no division": Mutant(over(NeverDivides), "the gradients", PLAIN),
    "a bucket is never reduced": Mutant(over(SkipsABucket), "the gradients", PLAIN),
    "the sum stays in a copy": Mutant(over(ReducesACopy), "the gradients", PLAIN),
    "a stale bucket": Mutant(over(KeepsTheLastStepsBucket), "the gradients", PLAIN),
    "a bit is off on one rank": Mutant(over(OneBitOff), "the bits", PLAIN),
    "less precision": Mutant(over(LosesPrecision), "the gradients", PLAIN),
    "other order on each rank": Mutant(over(OrdersItsBucketsItself), "the gradients", PLAIN),
    "no broadcast at the start": Mutant(over(NeverBroadcasts), "the loss", PLAIN),
    "no broadcast of buffers": Mutant(
        as_class(minidist.DistributedDataParallel, broadcast_buffers=False),
        "the buffers",
        WITH_BUFFERS,
    ),
    "weights ignored": Mutant(
        as_class(IgnoresWeights), "the gradients", replace(PLAIN, shards="uneven")
    ),
    "no_sync ignored": Mutant(
        as_class(NeverSuspends), "the traffic", replace(PLAIN, micro=2, comm="counted")
    ),
    "the hook is handed the parameter": Mutant(
        lambda net, case, comm: ByHand(net, "parameter"), "the gradients", PLAIN
    ),
}
