"""Ring attention: a sequence is split among the ranks; keys and values go around a ring.

In each step a rank's queries attend to the block of keys and values that is here, and what they
find is merged, while the block travels on (Liu et al., 2023). As no token sees a later one, the
last rank has the most to do; with `zigzag` rank r has pieces r and 2N - 1 - r, all equally much::

    out = attention(*(split(each) for each in (q, k, v)))  # [..., tokens, width of a head]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from from_scratch.refusals import check_sender


def pieces(rank: int, ranks: int, zigzag: bool) -> list[int]:
    """The pieces of the sequence that a rank has, in order."""
    return [rank, 2 * ranks - 1 - rank] if zigzag else [rank]


def split(full: Tensor, zigzag: bool = False, group: Any = None) -> Tensor:
    """This rank's tokens."""
    mine = pieces(dist.get_rank(group), dist.get_world_size(group), zigzag)
    count = dist.get_world_size(group) * len(mine)
    if full.shape[-2] % count:
        raise ValueError(f"{full.shape[-2]} tokens cannot be split into {count} equal pieces")
    return torch.cat([full.chunk(count, -2)[piece] for piece in mine], -2)


def attention(q: Tensor, k: Tensor, v: Tensor, zigzag: bool = False, group: Any = None) -> Tensor:
    """Causal attention of this rank's queries to keys and values of all ranks of the group."""
    check_sender(q, group)
    own = [x.unflatten(-2, (1 + zigzag, -1)).movedim(-3, 0) for x in (q, k, v)]  # pieces first
    wide = own[0].to(torch.promote_types(q.dtype, torch.float32))  # in bf16 each sum is rounded
    with torch.autocast(q.device.type, enabled=False):  # which would multiply in bf16
        wide = wide * q.shape[-1] ** -0.5
        out: Tensor = RingAttention.apply(wide, torch.stack(own[1:], 1), group)
    return out.movedim(0, -3).flatten(-3, -2).to(q.dtype)


class RingAttention(torch.autograd.Function):
    """Blocks go around in forward, and in backward once more, followed by their gradients.

    They travel in the dtype of `kv`, and are computed with in that of `q`.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, group: Any) -> Tensor:
        out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
        for block, pairs in around(kv, group):
            keys, values = block.to(q.dtype).unbind(1)
            for i, j, future in pairs:
                s = q[i] @ keys[j].mT + future
                more = s.logsumexp(-1, keepdim=True)
                out[i], lse[i] = merge(out[i], lse[i], (s - more).exp() @ values[j], more)
        ctx.group = group
        ctx.save_for_backward(q, kv, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        q, kv, out, lse = ctx.saved_tensors
        dq, own = torch.zeros_like(q), torch.zeros_like(kv, dtype=q.dtype)
        others = torch.zeros_like(kv)
        inner = (gradient * out).sum(-1, keepdim=True)
        for step, (block, pairs) in enumerate(around(kv, ctx.group)):
            dkv, (keys, values) = others if step else own, block.to(q.dtype).unbind(1)
            for i, j, future in pairs:
                p = (q[i] @ keys[j].mT + future - lse[i]).exp()  # softmax over all keys
                ds = p * (gradient[i] @ values[j].mT - inner[i])
                dq[i] += ds @ keys[j]
                dkv[j] += torch.stack([ds.mT @ q[i], p.mT @ gradient[i]])
            if step:  # they follow their block, and come home in the last step
                others, works = send_right(others, ctx.group)
                for work in works:
                    work.wait()
        return dq, (own + others).to(kv.dtype), None


def around(kv: Tensor, group: Any) -> Iterator[tuple[Tensor, list[tuple[int, int, Any]]]]:
    """Each block in turn, and which of our pieces see which of it, up to where."""
    rank, ranks, zigzag = dist.get_rank(group), dist.get_world_size(group), len(kv) == 2
    mine = pieces(rank, ranks, zigzag)
    future = kv.new_full((kv.shape[-2], kv.shape[-2]), -torch.inf).triu(1)
    for step in range(ranks):
        arriving, works = send_right(kv, group) if step < ranks - 1 else (kv, [])
        theirs = pieces((rank - step) % ranks, ranks, zigzag)
        pairs: list[tuple[int, int, Any]] = []
        for i, query in enumerate(mine):
            for j, key in enumerate(theirs):
                if key <= query:  # later pieces stay unseen
                    pairs.append((i, j, future if key == query else 0))
        yield kv, pairs
        for work in works:
            work.wait()
        kv = arriving


def merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Two attentions to different keys, weighted by the sums of their exponentials."""
    both = torch.logaddexp(lse, more_lse)
    return (lse - both).exp() * out + (more_lse - both).exp() * more, both


def send_right(tensor: Tensor, group: Any) -> tuple[Tensor, list[dist.Work]]:
    """Start to send it; the buffer for the left neighbor's, and the messages to wait for."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    arriving = torch.empty_like(tensor)
    send = dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % ranks)
    return arriving, dist.batch_isend_irecv([send, receive])
