"""The wrappers, broken in the ways in which they are usually broken: would the proof notice?

Most faults sit at the wrappers' seam: a comm that does one thing wrong. What is awaited there is
done at once, so that a fault shows in the same way each time.
"""

import torch

import minidist
from minidist.comm.ours import Ours
from tests.proof.cases import Case, Make, made
from tests.support.spoiled import Done


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


def over(fault: str) -> Make:
    """A way to train, over a faulty comm."""
    return lambda net, case, comm: made(net, case, Faulty(fault))


SHARDED = ["zero 1", "zero 2", "fsdp"]
ALL = ["ddp", *SHARDED]
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
MUTANTS: dict[str, tuple[Case, Make, str]] = {
    f"{fault}, {way}": (Case(way, 3), over(fault), noticed)
    for fault, (ways, noticed) in FAULTS.items()
    for way in ways
}
