"""Tensor parallelism: every rank works on all tokens, with a part of each layer's width.

The first layers of a block are split by columns, their outputs, the last one by rows, its inputs.
No hidden unit has to travel, and what leaves the block is one of N summands [tokens, ..., width]::

    mlp = SplitBlock([up.weight], gelu, down.weight, comm)
    attention = SplitBlock([q.weight, k.weight, v.weight], partial(attend, 64), o.weight, comm)

Shoeybi et al., *Megatron-LM* (2019), section 3; `sequence`: Korthikanti et al. (2023), section 4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import Parameter, ParameterList
from torch.nn.functional import linear, scaled_dot_product_attention

from from_scratch import Comm


def same(x: Tensor, comm: Comm) -> Tensor:
    """The tensor as it is: nothing is sent."""
    return x.view_as(x)


def all_reduce(x: Tensor, comm: Comm) -> Tensor:
    """The sum over the ranks, as a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    comm.all_reduce(total)
    return total


def all_gather(x: Tensor, comm: Comm) -> Tensor:
    """All tokens, from each rank's."""
    full = x.new_empty(comm.ranks * len(x), *x.shape[1:])
    comm.all_gather(full, x.contiguous())
    return full


def reduce_scatter(x: Tensor, comm: Comm) -> Tensor:
    """The sum over the ranks, of this rank's tokens."""
    part = x.new_empty(even(len(x), "tokens", comm), *x.shape[1:])
    comm.reduce_scatter(part, x.contiguous())
    return part


class Paired(torch.autograd.Function):
    """One function in forward, and its transpose, which is another one, in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm, there: Any, back: Any) -> Any:
        ctx.comm, ctx.back = comm, back
        return there(x, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.back(gradient, ctx.comm), None, None, None


class SplitBlock(nn.Module):
    """A rank's part of a block; with `sequence`, its own tokens come in and go out."""

    def __init__(
        self, columns: Any, inner: Any, rows: Tensor, comm: Comm, sequence: bool = False
    ) -> None:
        super().__init__()
        check_block(columns, inner, rows)
        mine = {id(weight): shard(weight, 0, comm) for weight in columns}  # each once, also if tied
        self.columns = ParameterList(mine[id(weight)] for weight in columns)
        self.inner, self.rows = inner, shard(rows, 1, comm)
        there, back = (all_gather, reduce_scatter) if sequence else (same, all_reduce)
        self.enter = comm, there, back
        self.leave = comm, back, there

    def forward(self, x: Tensor) -> Any:
        x = Paired.apply(x, *self.enter)
        hidden = self.inner(*[linear(x, weight) for weight in self.columns])
        return Paired.apply(linear(hidden, self.rows), *self.leave)


def attend(head: int, *qkv: Tensor) -> Tensor:
    """Causal attention by heads of so many columns."""
    if (width := qkv[0].shape[-1]) % head:
        raise ValueError(f"a rank's {width} columns are no whole number of heads of {head}")
    q, k, v = (each.unflatten(-1, (-1, head)).movedim(0, -2) for each in qkv)
    return scaled_dot_product_attention(q, k, v, is_causal=True).movedim(-2, 0).flatten(-2)


def check_block(columns: Any, inner: Any, rows: Tensor) -> None:
    """Refuse weights of which no rank would have the gradient."""
    if any(weight is rows for weight in columns):
        raise ValueError("rows: expected another weight than the columns, which are cut elsewhere")
    if isinstance(inner, nn.Module) and [*inner.parameters()]:
        raise ValueError("inner: expected no weights, which would see a part of the hidden units")


def even(count: int, what: str, comm: Comm) -> int:
    """Each rank's share of the count."""
    if count % comm.ranks:
        raise ValueError(f"{count} {what} cannot be split evenly among {comm.ranks} ranks")
    return count // comm.ranks


def shard(full: Tensor, dim: int, comm: Comm) -> Parameter:
    """This rank's part of a weight, whose dimension 0 counts outputs."""
    size = even(full.shape[dim], ("columns", "rows")[dim], comm)
    part = full.detach().narrow(dim, comm.rank * size, size).clone()
    frozen = isinstance(full, Parameter) and not full.requires_grad
    return Parameter(part, requires_grad=not frozen)
