"""Shards of different sizes: what each rank's gradients count for.

The mean of the ranks' means is the mean over all samples only if they have equally many of them. If
not, the gradient of a rank that has w of the Σw samples has to count for w / Σw instead of 1 / N.
"""

from __future__ import annotations

import math

import torch

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.runtime.group import wire_device
from minidist.comm.comm import Comm
from minidist.parallel.ddp.checks import is_number, nothing


def weight_of(samples: float, comm: Comm) -> float:
    """This rank's weight among all, such that equal ones are 1: N w_i / Σw.

    Args:
        samples: of this rank; 0 counts for nothing.
        comm: one all-reduce of a number is made.

    Raises:
        ValueError: samples is no number from 0 on, or 0 on all ranks.
    """

    def prepare(_: Call) -> Run:
        if not is_number(samples) or not 0 <= samples < math.inf:
            raise ValueError(f"samples: expected a number from 0 on, got {samples!r}")
        return nothing

    collective("weigh", comm.group, False, None, prepare)
    total = torch.tensor([samples], dtype=torch.float64, device=wire_device(comm.group))
    comm.all_reduce(total)
    if not total.item():
        raise ValueError("weigh: samples: expected some on at least one rank, got 0 on all ranks")
    return comm.ranks * samples / total.item()
