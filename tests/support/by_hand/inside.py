"""The two ends of a split block, as a learner may write them: right, and wrong in typical ways.

They run on the ranks, so this module imports little.
"""

from typing import Any

import torch
import torch.distributed as dist


def as_it_is(x: Any, comm: Any) -> Any:
    return x.view_as(x)


def summed(x: Any, comm: Any) -> Any:
    total = x.clone()
    comm.all_reduce(total)
    return total


def averaged(x: Any, comm: Any) -> Any:
    return summed(x, comm) / comm.ranks


def for_two_ranks(x: Any, comm: Any) -> Any:
    return averaged(x, comm) * 2


def in_place(x: Any, comm: Any) -> Any:
    comm.all_reduce(x.data)
    return x.view_as(x)


def gathered(x: Any, comm: Any) -> Any:
    every = x.new_empty(comm.ranks, *x.shape)
    comm.all_gather(every, x.contiguous())
    return every.sum(0)


def row_by_row(x: Any, comm: Any) -> Any:
    return torch.stack([summed(row, comm) for row in x])


def twice(x: Any, comm: Any) -> Any:
    return summed(summed(x, comm), comm) / comm.ranks


def by_torch(x: Any, comm: Any) -> Any:
    total = x.clone()
    dist.all_reduce(total)
    return total


def not_on_rank_0(x: Any, comm: Any) -> Any:
    return summed(x, comm) if comm.rank else x.clone()


def one_token(x: Any, comm: Any) -> Any:
    return summed(x[:1], comm)


def ends(copy: Any = (as_it_is, summed), reduce: Any = (summed, as_it_is)) -> Any:
    """Functions of a comm that return two autograd functions, with these forwards and backwards."""

    def make(comm: Any) -> Any:
        def function(there: Any, back: Any) -> Any:
            class Function(torch.autograd.Function):
                @staticmethod
                def forward(ctx: Any, x: Any) -> Any:
                    return there(x, comm)

                @staticmethod
                def backward(ctx: Any, gradient: Any) -> Any:
                    return back(gradient, comm)

            return Function.apply

        return function(*copy), function(*reduce)

    return make


def without_graph(comm: Any) -> Any:
    return (lambda x: x), (lambda x: summed(x.detach(), comm))
