"""Shares of different sizes: a weight for each rank, and a part for ranks without batches.

[Note: shadow passes] A rank that has run out of batches must still take part in what the others
send, or they wait for ever. So within `join` a rank announces what it does next: a forward that
broadcasts buffers, a backward that is averaged, `weigh`. A rank that has run out listens, and plays
that part with zeros. Each announcement is one all-reduce of an integer for each rank. PyTorch
announces forwards only, and takes for granted that one backward follows each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist

from minidist.collectives.runtime.group import wire_device
from minidist.comm.agreement import agreed
from minidist.comm.comm import Comm
from minidist.parallel.checks import is_number

FORWARD, BACKWARD, WEIGH = "forward", "backward", "weigh"
CODES: list[str | None] = [None, FORWARD, BACKWARD, WEIGH]  # None: this rank has run out


def weight_of(samples: float, comm: Comm) -> float:
    """Return N w / Σw for this rank's number of samples w: 1 if all ranks have equally many.

    The mean of the ranks' means is the mean over all samples only then. Otherwise a rank's gradient
    has to count for w / Σw instead of 1 / N.

    Args:
        samples: of this rank; with 0 it counts for nothing.
        comm: for one all-reduce of a number.

    Raises:
        ValueError: samples is no number from 0 on, or 0 on all ranks.
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
    """This rank's part in `join`.

    Args:
        comm: between the ranks.

    Attributes:
        going: the ranks of the group that still have batches, or had when all ran out.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm, self.going = comm, list(range(comm.ranks))

    def announce(self, what: str) -> int:
        """Announce FORWARD, BACKWARD or WEIGH; the others do the same, or have run out.

        Returns:
            the group's rank whose buffers are broadcast, the highest that has batches.

        Raises:
            RuntimeError: on all ranks: they do not announce the same.
        """
        self._exchange(what)
        return self.going[-1]

    def shadow(self) -> Iterator[str]:
        """What the others announce while this rank has no batches; ends when no rank has any."""
        while what := self._exchange(None):
            yield what

    def _exchange(self, mine: str | None) -> str | None:
        """Tell all ranks what this one does next; return what those do that still have batches."""
        table = torch.zeros(self.comm.ranks, dtype=torch.int32, device=wire_device(self.comm.group))
        table[self.comm.rank] = CODES.index(mine)
        self.comm.all_reduce(table)
        said: list[str | None] = [CODES[code] for code in table.tolist()]
        going = [rank for rank, what in enumerate(said) if what]
        if not going:
            return None
        self.going = going
        if len({said[rank] for rank in going}) > 1:
            ranks = dist.get_process_group_ranks(self.comm.group)
            pairs = zip(ranks, said, strict=True)
            listed = "; ".join(f"rank {rank}: {what or 'out of batches'}" for rank, what in pairs)
            raise RuntimeError(f"join: the ranks are not at the same point: {listed}")
        return said[going[0]]
