"""Shares of different sizes: a weight for each rank, and a part for ranks without batches.

[Note: shadow passes] A rank that has run out of batches must still take part in what the others
send, or they wait for ever. So within `join` a rank announces what it does next: a forward that
broadcasts buffers, or a backward that is averaged. A rank that has run out listens, and plays that
part with zeros. Each announcement is one all-reduce of an integer for each rank. PyTorch announces
forwards only, and takes for granted that one backward follows each.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from minidist.collectives.runtime.group import wire_device
from minidist.comm.agreement import agreed
from minidist.comm.comm import Comm
from minidist.parallel.checks import is_number

CODES = OUT, FORWARD, BACKWARD = ["out of batches", "forward", "backward"]


def weight_of(samples: float, comm: Comm) -> float:
    """Return N w / Σw for this rank's number of samples w: it counts for w / Σw instead of 1 / N.

    It raises ValueError if samples is no number from 0 on, or 0 on all ranks.
    """
    with agreed(comm, "weigh"):
        if not is_number(samples) or not 0 <= samples < math.inf:
            raise ValueError(f"samples: expected a number from 0 on, got {samples!r}")
    total = torch.tensor([samples], dtype=torch.float64, device=wire_device(comm.group))
    comm.all_reduce(total)
    if not total.item():
        raise ValueError("weigh: samples: expected some on at least one rank, got 0 on all ranks")
    return comm.ranks * samples / total.item()


class Joining:
    """This rank's part in `join`; `going` are the ranks that had batches when they last spoke."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.going = comm, list(range(comm.ranks))

    def announce(self, mine: str) -> str:
        """Tell all ranks what this one does next; return what those do that still have batches.

        OUT means that none has any. It raises RuntimeError on all ranks if they differ.
        """
        table = torch.zeros(self.comm.ranks, dtype=torch.int32, device=wire_device(self.comm.group))
        table[self.comm.rank] = CODES.index(mine)
        self.comm.all_reduce(table)
        said = {rank: CODES[code] for rank, code in enumerate(table.tolist()) if code}
        self.going = list(said) or self.going
        if len(set(said.values())) > 1:
            ranks = dist.get_process_group_ranks(self.comm.group)
            listed = "; ".join(f"rank {ranks[rank]}: {what}" for rank, what in said.items())
            raise RuntimeError(f"join: the ranks are not at the same point: {listed}")
        return said[self.going[0]] if said else OUT
