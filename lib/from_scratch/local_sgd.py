"""Local SGD and DiLoCo: ranks step by themselves, and average only after every H steps.

Under DDP ranks talk in every step. Here each steps on its own gradients, and after H steps the
ranks average how far they have come: H times fewer bytes, for replicas that drift apart between::

    inner = torch.optim.AdamW(net.parameters())
    optimizer = DiLoCo(inner, comm, every=100)
    loss_of(net(x), y).backward()
    optimizer.step()  # sends nothing, except each hundredth time
    optimizer.zero_grad()

What only the inner optimizer knows, such as Adam's moments, and buffers stay each rank's own.
Stich, *Local SGD converges fast and communicates little* (2019), algorithm 1; Douillard et al.,
*DiLoCo* (2023), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, Optimizer

from from_scratch import Comm
from from_scratch.refusals import check_round, check_rounds, check_trained


class LocalSGD:
    """Plain averaging: after every `every` steps all ranks go on from the mean of their weights.

    All replicas start from rank 0's weights.
    """

    def __init__(self, inner: Optimizer, comm: Comm, every: int) -> None:
        check_rounds(inner, every)
        self.inner, self.comm, self.every, self.steps = inner, comm, every, 0
        held = [parameter for group in inner.param_groups for parameter in group["params"]]
        for parameter in held:
            parameter.data = parameter.data.contiguous()  # as a part of a vector has to be
            comm.broadcast(parameter.detach())  # all replicas start as rank 0's
        self.parameters: list[Parameter] = [p for p in held if p.requires_grad]

    def step(self) -> None:
        """Step on this rank's own gradients; at the end of a round, synchronize."""
        check_trained(self.inner, self.parameters)
        self.inner.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.synchronize()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.inner.zero_grad()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Average the weights over the ranks."""
        flat = parameters_to_vector(self.parameters)
        self.comm.all_reduce(flat)
        write(flat / self.comm.ranks, self.parameters)


class DiLoCo(LocalSGD):
    """The mean change in a round is taken for a gradient, on which an outer optimizer steps.

    It is SGD with Nesterov's momentum. With `lr` 1 and `momentum` 0 it is plain averaging.
    """

    @torch.no_grad()
    def __init__(
        self, inner: Optimizer, comm: Comm, every: int, lr: float = 0.7, momentum: float = 0.9
    ) -> None:
        super().__init__(inner, comm, every)
        # The weights with which a round starts.
        self.start = Parameter(parameters_to_vector(self.parameters))
        self.outer = SGD([self.start], lr, momentum, nesterov=momentum > 0)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Take an outer step from where the round began; the next one begins there on all ranks."""
        gradient = self.start - parameters_to_vector(self.parameters)  # uphill, as gradients point
        self.comm.all_reduce(gradient)
        self.start.grad = gradient / self.comm.ranks
        self.outer.step()
        self.outer.zero_grad()
        write(self.start, self.parameters)

    def state_dict(self) -> dict[str, Any]:
        """The state that a rank needs to join at the end of a round."""
        check_round(self.steps, self.every)
        outer = self.outer.state_dict()
        return {"start": self.start.detach(), "outer": outer, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Join where another rank is. The inner optimizer's state stays this rank's own."""
        check_round(state["steps"], self.every)
        self.start.copy_(state["start"])
        self.outer.load_state_dict(state["outer"])
        self.steps = state["steps"]
        write(self.start, self.parameters)


def write(vector: Tensor, parameters: Iterable[Parameter]) -> None:
    """Copy a vector's parts into parameters, which stay in their place: a buffer's, say."""
    start = 0
    for parameter in parameters:
        parameter.copy_(vector[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()
