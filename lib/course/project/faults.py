"""Training on a rank, right or with one of five faults: what the reader's test is tested on."""

import math
from collections.abc import Callable
from functools import partial
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course.project.scenarios import CAP
from course.project.trained import Make, Trained, with_ddp, with_fsdp, with_zero
from from_scratch.ddp import OverlappedDDP
from from_scratch.fsdp import FSDP
from from_scratch.zero import ZeRO2
from minidist.comm.ours import Ours

WAYS: dict[str, Callable[..., Trained]] = {
    "DDP": partial(with_ddp, OverlappedDDP),
    "ZeRO": partial(with_zero, ZeRO2),
    "FSDP": partial(with_fsdp, FSDP),
}


class Fault(NamedTuple):
    """A planted fault, and how a test can see it."""

    what: str
    hint: str


SUM, STALE, CLIP = "no division", "a stale bucket", "clipping by the local norm"
SEED, BUFFER = "the same rows everywhere", "a forgotten buffer"
FAULTS = {
    SUM: Fault(
        "gradients are added up over the ranks and not divided by their number",
        "AdamW and clipping hide the scale of a gradient: train by SGD, and compare the norm.",
    ),
    STALE: Fault(
        "a bucket leaves before its last gradient is in it, so that of the step before travels",
        "Compare the weights after a few steps, each on other data.",
    ),
    CLIP: Fault(
        "each rank clips by the norm of what it has itself, not by that of the whole gradient",
        "Give `step` a max_norm below the norm; compare what it returns, and the weights.",
    ),
    SEED: Fault(
        "the sampler draws with the same seed and does not know the rank, so all draw the same",
        "Train on `trainer.rows`, and the one process on all rows, no two of them equal.",
    ),
    BUFFER: Fault(
        "rank 0's buffers never reach the other ranks",
        "Give each rank a model whose buffer starts with other values, and the output needs it.",
    ),
}


class Trainer:
    """The parts of a training loop, as the reader's test sees them."""

    def __init__(self, way: str, fault: str, net: nn.Module, optimizer: Make) -> None:
        """Wrap the model; all ranks start with rank 0's."""
        self.fault, self.comm = fault, Ours(algorithm="ring")
        own = [buffer.clone() for buffer in net.buffers()]
        made = WAYS[way](net, self.comm, CAP, lambda parameters, lr: optimizer(parameters))
        self.model, self._optimizer, self._synchronize, self._weights = made
        if fault == BUFFER:
            for buffer, before in zip(net.buffers(), own, strict=True):
                buffer.copy_(before)
        if way == "ZeRO":
            self._synchronize = self._optimizer.synchronize
        groups = getattr(self._optimizer, "inner", self._optimizer).param_groups
        self._stepped: list[nn.Parameter] = [each for group in groups for each in group["params"]]
        self._sharded = way != "DDP"
        if fault == STALE:
            self._leave_early(way)

    def rows(self, step: int, count: int) -> Tensor:
        """The rows of a step's batch that are this rank's; the number of ranks divides `count`."""
        share, rest = divmod(count, self.comm.ranks)
        if rest:
            raise ValueError(f"{count} rows are not a multiple of {self.comm.ranks} ranks")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(step))
        place = 0 if self.fault == SEED else self.comm.rank
        return order[place * share : (place + 1) * share]

    def step(self, loss: Tensor, max_norm: float = math.inf) -> Tensor:
        """Backward, average, clip, step, zero the gradients; the norm is that before clipping."""
        if self.fault == SUM:
            loss = loss * self.comm.ranks  # as if nobody divided
        torch.autograd.backward(loss)
        own = None if self._sharded else self._squares()  # DDP's, before the average
        self._synchronize()
        total = self._squares()
        if self.fault == CLIP:
            total = total if own is None else own
        elif self._sharded:
            self.comm.all_reduce(total)
        norm = total.sqrt()
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
        return torch.stack([gradient.square().sum() for gradient in gradients]).sum()

    def _leave_early(self, way: str) -> None:
        model = self.model
        if way == "DDP":
            delay(model, "launch_next", lambda: model.buckets[len(model.in_flight)][-1])
        else:
            flats, place = (self._optimizer.flats, -1) if way == "ZeRO" else (model.units, 0)
            for flat in flats:
                delay(flat, "reduce_gradients", partial(getitem, flat.parameters, place))


def delay(bucket: Any, send: str, last: Callable[[], Any]) -> None:
    """Let the method that sends a bucket find the gradient of the step before in `last()`."""
    really, before = getattr(bucket, send), dict[nn.Parameter, Tensor]()

    def early(*args: Any) -> Any:
        parameter = last()
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = before.get(parameter, torch.zeros_like(gradient))
        before[parameter] = gradient
        return really(*args)

    setattr(bucket, send, early)


def run(check: Callable[..., object], way: str, fault: str = "") -> None:
    """On a rank: the reader's test of a way to train, with a fault in it unless that is ""."""
    try:
        check(partial(Trainer, way, fault))
    except AssertionError as error:  # a subclass, too: its own would have to be imported
        raise AssertionError(str(error)).with_traceback(error.__traceback__) from None
