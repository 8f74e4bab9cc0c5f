"""ZeRO by hand, as a learner may write it: right, and wrong in the typical ways.

They run on the ranks, so this module imports little.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import minidist
from minidist import ReduceOp


def reduce_scatter(output: Any, input: Any) -> None:
    minidist.reduce_scatter_tensor(output, input, ReduceOp.AVG)


def its_own(output: Any, input: Any) -> None:
    output.copy_(input.chunk(dist.get_world_size())[dist.get_rank()])


def of_three(output: Any, input: Any) -> None:
    minidist.reduce_scatter_tensor(output, input / 3)


def all_reduced(output: Any, input: Any) -> None:
    input = input.clone()
    minidist.all_reduce(input, ReduceOp.AVG)
    its_own(output, input)


def gathered(output: Any, input: Any) -> None:
    everyones = input.new_empty(dist.get_world_size(), len(input))
    minidist.all_gather_into_tensor(everyones, input)
    its_own(output, everyones.mean(0))


def with_the_other(output: Any, input: Any) -> None:
    """Right on two ranks."""
    theirs = input.clone()
    minidist.ring_shift(theirs)
    its_own(output, (input + theirs) / 2)


def by_torch(output: Any, input: Any) -> None:
    dist.all_reduce(input)
    its_own(output, input / dist.get_world_size())


def in_halves(output: Any, input: Any) -> None:
    parts, whole = output.chunk(2), input.view(dist.get_world_size(), -1)
    widths = [len(part) for part in parts]
    for part, columns in zip(parts, whole.split(widths, dim=1), strict=True):
        reduce_scatter(part, columns.contiguous().flatten())


def moments_too(optimizer: Any) -> None:
    """All-gathers what the optimizer keeps, as is often said of ZeRO-1."""
    for kept in list(optimizer.state.values()):
        own = kept["momentum_buffer"]
        whole = own.new_empty(len(own) * dist.get_world_size())
        minidist.all_gather_into_tensor(whole, own)


def zero_1(
    *,
    reduce: Any = reduce_scatter,
    gather: Any = minidist.all_gather_into_tensor,
    before: Any = lambda optimizer: None,
    write: bool = True,
    pad: bool = True,
    afresh: bool = False,
) -> Any:
    """Right as it stands, with a knob for each way to get it wrong."""

    def my_zero(parameters: list[Any], make: Any) -> Any:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        total = sum(p.numel() for p in parameters)
        size = -(-total // ranks) if pad else total // ranks
        weights, gradient = torch.zeros(ranks * size), torch.zeros(ranks * size)
        parts = weights.split([p.numel() for p in parameters] + [len(weights) - total])
        for p, part in zip(parameters, parts, strict=False):
            part.copy_(p.detach().flatten())
        mine = weights[rank * size : (rank + 1) * size]
        mine.grad = torch.zeros(size)
        optimizers = [make([mine])]

        def step() -> None:
            gradient[:total] = torch.cat([p.grad.flatten() for p in parameters])
            reduce(mine.grad, gradient)
            if afresh:
                optimizers.append(make([mine]))
            before(optimizers[-1])
            optimizers[-1].step()
            gather(weights, mine)
            for p, part in zip(parameters, parts, strict=False):
                if write:
                    p.data.copy_(part.view(p.shape))

        return step

    return my_zero


def by_whole_parameters(parameters: list[Any], make: Any) -> Any:
    """A parameter is one rank's, which broadcasts it. As torch's; and not in equal slices."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    optimizer = make(parameters[rank::ranks])

    def step() -> None:
        for place, p in enumerate(parameters):
            minidist.reduce(p.grad, place % ranks, ReduceOp.AVG)
        optimizer.step()
        for place, p in enumerate(parameters):
            minidist.broadcast(p.detach(), place % ranks)

    return step


def of_all_moments(parameters: list[Any], make: Any) -> Any:
    """DDP: every rank steps with all of the gradient, and keeps all moments."""
    optimizer = make(parameters)

    def step() -> None:
        for p in parameters:
            minidist.all_reduce(p.grad, ReduceOp.AVG)
        optimizer.step()

    return step


KEPT: list[Any] = []


def kept(output: Any, input: Any) -> None:
    """The gradient is flat already, so this is the gradient's own memory."""
    reduce_scatter(output, input)
    KEPT.append(input)


def hooks(
    *, reduce: Any = reduce_scatter, add: bool = True, free: bool = True, last: bool = True
) -> Any:
    """Right as it stands, with a knob for each way to get it wrong."""

    def my_hooks(parameters: list[Any], slices: list[Any]) -> None:
        into = dict(zip(parameters, slices, strict=True))

        def arrived(parameter: Any) -> None:
            own = torch.zeros_like(into[parameter])
            reduce(own, parameter.grad.flatten())
            into[parameter].mul_(add).add_(own)
            if free:
                parameter.grad = None

        for parameter in parameters if last else parameters[:-1]:
            parameter.register_post_accumulate_grad_hook(arrived)

    return my_hooks


def one_behind(parameters: list[Any], slices: list[Any]) -> None:
    """Keeps the gradient before the one that has come: two are there at once."""
    kept: list[Any] = []

    def arrived(own: Any, parameter: Any) -> None:
        part = torch.zeros_like(own)
        reduce_scatter(part, parameter.grad.flatten())
        own += part
        kept.append(parameter)
        while len(kept) > 2 or (kept and parameter is parameters[0]):  # whose gradient comes last
            kept.pop(0).grad = None

    for parameter, own in zip(parameters, slices, strict=True):
        parameter.register_post_accumulate_grad_hook(partial(arrived, own))


def at_the_end(parameters: list[Any], slices: list[Any]) -> None:
    """Reduces and frees all of them when the last one has come: right, but not in time."""
    came = []

    def arrived(parameter: Any) -> None:
        came.append(parameter)
        if len(came) == len(parameters):
            for each, own in zip(parameters, slices, strict=True):
                part = torch.zeros_like(own)
                reduce_scatter(part, each.grad.flatten())
                own += part
                each.grad = None
            came.clear()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(arrived)
