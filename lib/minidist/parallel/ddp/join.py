"""Ranks that run out of batches before others.

[Note: shadow passes] A rank that has run out of batches must still take part in what the others
send, or they wait for ever. So within `join` a rank announces what it does next: a forward that
broadcasts buffers, or a backward that is averaged. A rank that has run out listens, and plays that
part with zeros. Each announcement is one all-reduce of an integer for each rank. PyTorch announces
forwards only, and takes for granted that one backward follows each.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from minidist.collectives.runtime.group import wire_device
from minidist.comm.comm import Comm

CODES = OUT, FORWARD, BACKWARD = ["out of batches", "forward", "backward"]


def announce(comm: Comm, mine: str) -> dict[int, str]:
    """Tell all ranks what this one does next; return what each does that still has batches.

    It raises RuntimeError on all ranks if they differ.
    """
    table = torch.zeros(comm.ranks, dtype=torch.int32, device=wire_device(comm.group))
    table[comm.rank] = CODES.index(mine)
    comm.all_reduce(table)
    said = {rank: CODES[code] for rank, code in enumerate(table.tolist()) if code}
    if len(set(said.values())) > 1:
        ranks = dist.get_process_group_ranks(comm.group)
        listed = "; ".join(f"rank {ranks[rank]}: {what}" for rank, what in said.items())
        raise RuntimeError(f"join: the ranks are not at the same point: {listed}")
    return said
