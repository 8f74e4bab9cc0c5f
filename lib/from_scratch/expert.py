"""A mixture of experts: each rank has some experts, and tokens travel to theirs and back.

A router, which all ranks have, picks `top_k` experts for each token. An all-to-all tells how many
tokens come from where, a second one brings them, and a third one takes the results home, where
they are added up, weighted by the router. Backward goes both ways again::

    layer = Experts(router, experts, comm, top_k=2, capacity=40)
    loss = loss_of(layer(x)) + 0.01 * layer.balance

Lepikhin et al., *GShard* (2020); Fedus et al., *Switch Transformers* (2022), section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import one_hot

from from_scratch import Comm
from from_scratch.refusals import check_shared

Exchange = Callable[..., Any]  # called like torch's all_to_all_single


class Travel(torch.autograd.Function):
    """Rows go to other ranks, so many to each; in backward their gradients come back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, give: list[int], take: list[int], way: Exchange) -> Tensor:
        ctx.back = take, give, way
        arrived = rows.new_empty(sum(take), *rows.shape[1:])
        way(arrived, rows.contiguous(), take, give)
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Travel.apply(gradient, *ctx.back), None, None, None


class Experts(nn.Module):
    """Made of all experts, of which it keeps a rank's. Tokens are [tokens, width].

    All ranks start with rank 0's router. At most `capacity` of a rank's tokens go to one expert;
    those that come later are dropped, and get zeros. The gradient of an expert is a sum over the
    ranks, where DDP makes means.
    """

    def __init__(
        self,
        router: nn.Linear,
        experts: Sequence[nn.Module],
        comm: Comm,
        top_k: int = 1,
        capacity: int | None = None,
        exchange: Exchange = dist.all_to_all_single,
    ) -> None:
        super().__init__()
        if len(experts) % comm.ranks or not experts:
            raise ValueError(
                f"{len(experts)} experts cannot be spread evenly over {comm.ranks} ranks"
            )
        if router.out_features != len(experts):
            raise ValueError(f"{len(experts)} experts, and a router for {router.out_features}")
        if top_k not in range(1, len(experts) + 1):
            raise ValueError(f"top_k: expected 1 to {len(experts)} experts, got {top_k}")
        if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
            raise ValueError(f"capacity: expected 1 token or more, or None, got {capacity}")
        if exchange is dist.all_to_all_single and comm.ranks < dist.get_world_size():
            raise ValueError(f"exchange: expected one of comm's {comm.ranks} ranks, got one of all")
        each = len(experts) // comm.ranks
        check_shared(experts, [number // each for number in range(len(experts))])
        for tensor in [*router.parameters(), *router.buffers()]:
            comm.broadcast(tensor.detach())
        self.router, self.exchange, self.ranks = router, exchange, comm.ranks
        self.experts = nn.ModuleList(experts[comm.rank * each : (comm.rank + 1) * each])
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError(f"x: expected [tokens, width], got {[*x.shape]}")
        probability = self.router(x).softmax(-1)
        gate, choice = (each.flatten() for each in probability.topk(self.top_k))
        token = torch.arange(len(x), device=x.device).repeat_interleave(self.top_k)
        chosen = one_hot(choice, probability.shape[1])
        place = chosen.cumsum(0).gather(1, choice[:, None])[:, 0]  # in its queue, from 1
        self.balance = balance(probability, chosen)

        order = choice.argsort(stable=True)  # by expert, and so by rank
        order = order[place[order] <= (self.capacity or len(choice))]
        counts = choice[order].bincount(minlength=probability.shape[1])
        coming = torch.empty_like(counts)
        self.exchange(coming, counts)  # for each rank, and each of our experts
        give, take = (each.view(self.ranks, -1).sum(1).tolist() for each in (counts, coming))

        # Gradients travel on all ranks or on none, so also where tokens need none.
        rows = x[token[order]].requires_grad_(torch.is_grad_enabled())
        here = Travel.apply(rows, give, take, self.exchange)
        home = Travel.apply(self.compute(here, coming), take, give, self.exchange)
        weighted: Tensor = gate[order, None] * home
        return weighted.new_zeros(len(x), weighted.shape[1]).index_add(0, token[order], weighted)

    def compute(self, rows: Tensor, coming: Tensor) -> Tensor:
        """Our experts' outputs for the rows, which come by rank, and from each by expert."""
        expert = torch.arange(len(self.experts), device=rows.device).repeat(self.ranks)
        order = expert.repeat_interleave(coming).argsort(stable=True)
        parts = rows[order].split(coming.view(self.ranks, -1).sum(0).tolist())
        outputs = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        return torch.cat(outputs)[order.argsort()] + rows[:0].sum()  # 0, and no expert detaches it


def balance(probability: Tensor, chosen: Tensor) -> Tensor:
    """The loss that keeps experts equally busy: 1 if they are, more if not, 0 without tokens."""
    if not len(probability):
        return probability.sum()  # means would be NaN
    share = chosen.to(probability.dtype).mean(0)
    return probability.shape[1] * (share * probability.mean(0)).sum()
