"""Shares of different sizes: how much a rank's batch counts, and ranks that run out of batches.

[Note: shadow passes] A rank that has run out of batches must still take part in what the others
send, or they wait for ever. So within `join` a rank announces what it does next: a forward that
broadcasts buffers, or a backward that is averaged. A rank that has run out listens, and plays that
part with zeros. Each announcement is one all-reduce of a number for each rank. PyTorch announces
forwards only, and takes for granted that one backward follows each.
"""

import torch
import torch.distributed as dist

from minidist.collectives.runtime.group import wire_device
from minidist.comm.comm import Comm

CODES = OUT, FORWARD, BACKWARD = ["out of batches", "forward", "backward"]


class Join:
    """Announcements of what the ranks in a `join` do next: see [Note: shadow passes]."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.last = 0  # the highest rank that had batches when they last spoke

    def announce(self, mine: str) -> str:
        """Tell all ranks what this one does next; return what those do that still have batches."""
        codes = shared(self.comm, CODES.index(mine))
        plans = {rank: CODES[int(code)] for rank, code in enumerate(codes) if code}
        if len(set(plans.values())) > 1:
            ranks = dist.get_process_group_ranks(self.comm.group)
            listed = "; ".join(f"rank {ranks[rank]}: {what}" for rank, what in plans.items())
            raise RuntimeError(f"join: the ranks are not at the same point: {listed}")
        self.last = max(plans, default=self.last)
        return next(iter(plans.values()), OUT)


def shared(comm: Comm, mine: float) -> list[float]:
    table = torch.zeros(comm.ranks, dtype=torch.float64, device=wire_device(comm.group))
    table[comm.rank] = mine
    comm.all_reduce(table)
    return table.tolist()


def weight(comm: Comm, samples: float) -> float:
    """The weight of a rank's gradients if its loss is the mean over so many samples."""
    total = sum(shared(comm, samples))
    if not total:
        raise ValueError("weigh: samples: expected some on one rank, got 0 on all ranks")
    return comm.ranks * samples / total
