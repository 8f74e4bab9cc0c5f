"""The ring all-reduce, on nothing but send and receive.

The tensor is split into N chunks, one per rank. In every step each rank sends one chunk to its
right neighbor and receives one from its left. After N - 1 steps (the reduce-scatter) every rank
has the finished sum of one chunk; after N - 1 more (the all-gather) it has all of them.
Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms* (2009).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    """Sum a contiguous tensor over all ranks, in place."""
    chunks = list(tensor.view(-1).tensor_split(dist.get_world_size()))
    reduce_scatter_chunks(chunks)
    all_gather_chunks(chunks)


def reduce_scatter(output: Tensor, input: Tensor) -> None:
    """Sum `input` over all ranks; rank r keeps the r-th of its N equal parts in `output`."""
    chunks = list(input.clone().view(-1).chunk(dist.get_world_size()))
    reduce_scatter_chunks(chunks)
    output.view(-1).copy_(chunks[dist.get_rank()])


def all_gather(output: Tensor, input: Tensor) -> None:
    """Collect every rank's `input` in `output`, N times as large, in the order of ranks."""
    chunks = list(output.view(-1).chunk(dist.get_world_size()))
    chunks[dist.get_rank()].copy_(input.view(-1))
    all_gather_chunks(chunks)


def reduce_scatter_chunks(chunks: list[Tensor]) -> None:
    """Send partial sums around; rank r ends with the finished sum of chunk r."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(ranks - 1):
        outgoing = chunks[(rank - 1 - step) % ranks]
        mine = chunks[(rank - 2 - step) % ranks]
        incoming = torch.empty_like(mine)
        send_right_receive_left(outgoing, incoming)
        mine += incoming


def all_gather_chunks(chunks: list[Tensor]) -> None:
    """Send finished chunks around the ring, starting with chunk r on rank r."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(ranks - 1):
        outgoing = chunks[(rank - step) % ranks]
        incoming = chunks[(rank - 1 - step) % ranks]
        send_right_receive_left(outgoing, incoming)


def send_right_receive_left(outgoing: Tensor, incoming: Tensor) -> None:
    """One step of the ring, both ways in one batch: apart, they can hang on GPUs."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
