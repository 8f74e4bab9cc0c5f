"""Training on a rank, as the reader's test sees it: it does not know which fault is in it.

All that ranks tell each other, and all that a fault changes, goes over a line to the grader's
process. So this code is the same with every fault and with none.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ReduceOp

from course.ask.line import Line
from course.project.scenarios import CAP
from course.project.trained import Make, Trained, with_ddp, with_fsdp, with_zero
from from_scratch.ddp import OverlappedDDP
from from_scratch.fsdp import FSDP
from from_scratch.zero import ZeRO2
from minidist.comm.comm import Op, Pending

WAYS: dict[str, Callable[..., Trained]] = {
    "DDP": partial(with_ddp, OverlappedDDP),
    "ZeRO": partial(with_zero, ZeRO2),
    "FSDP": partial(with_fsdp, FSDP),
}


class Done(NamedTuple):
    """The handle of a call whose result is there."""

    span: None = None

    def wait(self) -> None:
        """Return at once."""


class Through:
    """A `Comm` that lets the grader's process do what happens between the ranks."""

    group = None

    def __init__(self, line: Line) -> None:
        self._line, self.rank, self.ranks = line, dist.get_rank(), dist.get_world_size()

    def ask(self, name: str, *args: Any) -> Any:
        """The answer to this rank; a tensor is sent without the memory that it is a view of."""
        own = [each.clone() if isinstance(each, Tensor) else each for each in args]
        return self._line.ask(name, self.rank, *own)

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        """Write rank 0's tensor into everyone's."""
        return self._into(tensor, "broadcast", tensor, async_op)

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        """Sum in place."""
        return self._into(tensor, "all_reduce", tensor, async_op)

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        """Sum; this rank keeps its part."""
        return self._into(output, "reduce_scatter", input, async_op)

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        """Collect everyone's part."""
        return self._into(output, "all_gather", input, async_op)

    def _into(self, output: Tensor, name: str, given: Tensor, async_op: bool) -> Pending:
        output.copy_(self.ask(name, given.detach()))
        return Done() if async_op else None


class Trainer:
    """The parts of a training loop."""

    def __init__(self, way: str, line: Line, net: nn.Module, optimizer: Make) -> None:
        """Wrap the model; all ranks start with rank 0's."""
        self._comm = comm = Through(line)
        own = [buffer.clone() for buffer in net.buffers()]
        made = WAYS[way](net, comm, CAP, lambda parameters, lr: optimizer(parameters))
        self.model, self._optimizer, self._synchronize, self._weights = made
        for buffer, before in zip(net.buffers(), own, strict=True):
            buffer.copy_(comm.ask("buffer", before))
        if way == "ZeRO":
            self._synchronize = self._optimizer.synchronize
        groups = getattr(self._optimizer, "inner", self._optimizer).param_groups
        self._stepped: list[nn.Parameter] = [each for group in groups for each in group["params"]]
        self._sharded = way != "DDP"

    def rows(self, step: int, count: int) -> Tensor:
        """The rows of a step's batch that are this rank's; the number of ranks divides `count`."""
        ranks = self._comm.ranks
        if count % ranks:
            raise ValueError(f"{count} rows are not a multiple of {ranks} ranks")
        rows: Tensor = self._comm.ask("rows", step, count)
        return rows

    def step(self, loss: Tensor, max_norm: float = math.inf) -> Tensor:
        """Backward, average, clip, step, zero the gradients; the norm is that before clipping."""
        torch.autograd.backward(loss)
        own = self._squares()  # DDP's, before the average
        self._synchronize()
        norm: Tensor = self._comm.ask("norm", self._sharded, own, self._squares())
        for each in self._stepped:
            if each.grad is not None:
                each.grad *= (max_norm / (norm + 1e-6)).clamp(max=1)  # as clip_grad_norm_
        self._optimizer.step()
        self._optimizer.zero_grad()
        return norm

    def weights(self) -> dict[str, Tensor]:
        """All parameters in full, by name. Every rank must call it."""
        return {name: each.detach().clone() for name, each in self._weights().items()}

    def _squares(self) -> Tensor:
        gradients = [each.grad for each in self._stepped if each.grad is not None]
        return torch.stack([torch.zeros(()), *(each.square().sum() for each in gradients)]).sum()


def run(check: Callable[..., Any], way: str, path: str) -> Any:
    """On a rank: check(make), the reader's test of a way to train; `path` is of a `Meeting`."""
    line = Line(path)
    try:
        found = check(partial(Trainer, way, line))
    except AssertionError as error:  # a subclass, too: its own would have to be imported
        raise AssertionError(str(error)).with_traceback(error.__traceback__) from None
    line.ask("end", dist.get_rank())
    return found
