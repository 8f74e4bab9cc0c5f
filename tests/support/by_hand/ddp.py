"""DDP by hand, as a learner may write it: right, and wrong in the typical ways.

They run on the ranks, so this module imports little.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import minidist


def from_rank_0(parameter: Any) -> None:
    minidist.broadcast(parameter.detach(), 0)


def average(parameter: Any) -> None:
    minidist.all_reduce(parameter.grad, minidist.ReduceOp.AVG)


def by_hand(*, broadcast: Any = from_rank_0, average: Any = average) -> Any:
    def my_ddp(model: nn.Module) -> None:
        for parameter in model.parameters():
            broadcast(parameter)
            parameter.register_post_accumulate_grad_hook(average)

    return my_ddp


def average_of_three(parameter: Any) -> None:
    parameter.grad /= 3
    minidist.all_reduce(parameter.grad)


def with_the_next_rank(parameter: Any) -> None:
    """Right on two ranks."""
    theirs = parameter.grad.clone()
    minidist.ring_shift(theirs)
    parameter.grad.add_(theirs).div_(2)


def gathered(parameter: Any) -> None:
    everyones = parameter.grad.new_empty(dist.get_world_size(), *parameter.shape)
    minidist.all_gather_into_tensor(everyones, parameter.grad)
    parameter.grad.copy_(everyones.mean(0))


def by_rank_0(parameter: Any) -> None:
    minidist.reduce(parameter.grad, 0, minidist.ReduceOp.AVG)
    minidist.broadcast(parameter.grad, 0)


def in_halves(parameter: Any) -> None:
    for half in parameter.grad.flatten().chunk(2):
        minidist.all_reduce(half, minidist.ReduceOp.AVG)


def twice(parameter: Any) -> None:
    average(parameter)
    average(parameter)


def by_torch(parameter: Any) -> None:
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def by_torch_in_secret(parameter: Any) -> None:
    try:
        by_torch(parameter)
    except Exception:
        average(parameter)


def broadcast_by_a_sum(parameter: Any) -> None:
    weights = parameter.detach()
    weights.mul_(dist.get_rank() == 0)
    minidist.all_reduce(weights)


def first_eight(model: nn.Module) -> None:
    for number, parameter in enumerate(model.parameters()):
        from_rank_0(parameter)
        if number < 8:
            parameter.register_post_accumulate_grad_hook(average)


def in_another_order(turn: Any) -> Any:
    """All gradients are reduced when the last has come, in an order that `turn` makes."""

    def my_ddp(model: nn.Module) -> None:
        parameters = list(model.parameters())
        seen: list[nn.Parameter] = []

        def collect(parameter: nn.Parameter) -> None:
            seen.append(parameter)
            if len(seen) == len(parameters):
                for each in turn(parameters):
                    average(each)
                seen.clear()

        for parameter in parameters:
            from_rank_0(parameter)
            parameter.register_post_accumulate_grad_hook(collect)

    return my_ddp


def swapped(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """The two weights of one shape change places on rank 1, which no check of shapes can see."""
    if dist.get_rank() == 1:
        parameters = list(parameters)
        i, j = [i for i, p in enumerate(parameters) if p.shape == parameters[2].shape][:2]
        parameters[i], parameters[j] = parameters[j], parameters[i]
    return parameters


def rotated(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    rank = dist.get_rank()
    return parameters[rank:] + parameters[:rank]


def once(model: nn.Module) -> None:
    """The hooks are gone after the first backward."""
    handles = []
    for parameter in model.parameters():
        from_rank_0(parameter)

        def first(parameter: Any, own: int = len(handles)) -> None:
            average(parameter)
            handles[own].remove()

        handles.append(parameter.register_post_accumulate_grad_hook(first))


def from_rank_0_only(model: nn.Module) -> None:
    if dist.get_rank() == 0:
        by_hand()(model)


def by_tensor_hooks(model: nn.Module) -> None:
    """Another right way: the hook of a tensor returns the gradient that is to be kept."""

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        averaged = gradient.clone()
        minidist.all_reduce(averaged, minidist.ReduceOp.AVG)
        return averaged

    for parameter in model.parameters():
        from_rank_0(parameter)
        parameter.register_hook(hook)
