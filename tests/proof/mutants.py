"""The wrappers, broken in the ways in which they are usually broken: would the proof notice?

Most faults sit at the wrappers' seam: a comm that does one thing wrong. What is awaited there is
done at once, so that a fault shows in the same way each time.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import minidist
from minidist.comm.comm import Ours
from tests.proof.cases import Case, Made, Make, made


class Done:
    """The handle of what is done already."""

    span = None

    def wait(self) -> bool:
        return True


class Faulty(Ours):
    """Does everything at once, and wrong in one way; in "none" it is right."""

    def __init__(self, fault: str) -> None:
        super().__init__(algorithm="ring")
        self.fault, self.calls = fault, 0

    def broadcast(self, tensor, group_src=0, async_op=False):  # type: ignore[no-untyped-def]
        if self.fault != "never broadcasts":
            super().broadcast(tensor, group_src)
        return Done() if async_op else None

    def all_reduce(self, tensor, op=minidist.ReduceOp.SUM, async_op=False):  # type: ignore[no-untyped-def]
        own = tensor.clone()
        super().all_reduce(tensor, op)
        if tensor.is_floating_point():  # flags are no gradients
            self.spoil(tensor, own)
        return Done() if async_op else None

    def reduce_scatter(self, output, input, op=minidist.ReduceOp.SUM, async_op=False):  # type: ignore[no-untyped-def]
        each = len(input) // self.ranks
        turned = self.fault == "another's slice"
        super().reduce_scatter(output, input.roll(each) if turned else input, op)
        self.spoil(output, input[each * self.rank :][:each])
        return Done() if async_op else None

    def all_gather(self, output, input, async_op=False):  # type: ignore[no-untyped-def]
        super().all_gather(output, input)
        if self.fault == "gathers in its own order":
            output.copy_(output.roll(input.numel() * self.rank))
        if self.fault == "one bit off":
            self.flip(output)
        return Done() if async_op else None

    def spoil(self, mean: torch.Tensor, own: torch.Tensor) -> None:
        """A mean of gradients, of which this rank's are `own`."""
        self.calls += 1
        if self.fault == "never divides":
            mean *= self.ranks
        elif self.fault == "skips a bucket" and self.calls % 3 == 0:
            mean.copy_(own)
        elif self.fault == "loses precision":
            mean.copy_(mean.float())
        elif self.fault == "one bit off":
            self.flip(mean)

    def flip(self, tensor: torch.Tensor) -> None:
        """The last bit of the first number, on the last rank."""
        if self.rank == self.ranks - 1:
            tensor[:1] = torch.nextafter(tensor[:1], torch.full_like(tensor[:1], torch.inf))


class ByHand(nn.Module):
    """DDP as one would write it first; or wrong, reducing the parameter that a hook is handed."""

    def __init__(self, net: nn.Module, comm: object, wrong: bool = False) -> None:
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


class IgnoresWeights(minidist.DistributedDataParallel):
    def weigh(self, samples: int) -> None:
        pass


def over(fault: str) -> Make:
    """A way to train, over a faulty comm."""
    return lambda net, case, comm: made(net, case, Faulty(fault))


def around(wrap: Any, **options: Any) -> Make:
    """Another DDP."""

    def make(net: nn.Module, case: Case, comm: Any) -> Made:
        alone = made(net, Case("one process", 1), None)
        return alone._replace(model=wrap(net, comm=comm, **options))

    return make


SHARDED = ["zero 1", "zero 2", "fsdp"]
ALL = ["ddp overlapped", *SHARDED]
FAULTS = {  # at the seam; what the proof must complain of
    "none": (ALL, ""),
    "never divides": (ALL, "the gradients"),
    "skips a bucket": (ALL, "the gradients"),
    "loses precision": (ALL, "the gradients"),
    "another's slice": (SHARDED, "the gradients"),
    "never broadcasts": (ALL, "the losses"),
    "one bit off": (ALL, "the bits"),
    "gathers in its own order": (SHARDED, "the bits"),
}
OURS, DDP = minidist.DistributedDataParallel, partial(Case, "ddp overlapped", 3)
MUTANTS: dict[str, tuple[Case, Make, str]] = {
    f"{fault}, {way}": (Case(way, 3), over(fault), noticed)
    for fault, (ways, noticed) in FAULTS.items()
    for way in ways
} | {
    "whole, by hand": (DDP(model="convnet"), around(ByHand), ""),
    "the hook is handed the parameter": (DDP(), around(ByHand, wrong=True), "the gradients"),
    "no broadcast of buffers": (
        DDP(model="convnet"),
        around(OURS, broadcast_buffers=False),
        "the buffers",
    ),
    "weights ignored": (DDP(shards="uneven"), around(IgnoresWeights), "the gradients"),
}
