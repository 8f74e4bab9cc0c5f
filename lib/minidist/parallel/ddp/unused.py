"""Parameters that a backward left without a gradient: which ranks used what.

[Note: unused parameters] PyTorch walks the graph after each forward to find them, so that buckets
need not wait for what will not come. We do not: once the buckets are in the order of arrival, those
that never arrived on rank 0 are in the last ones, and all others leave early without a walk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn import Parameter

from minidist.comm.comm import Comm
from minidist.parallel.sharding.partition import Named


class Usage:
    """Which parameters got a gradient since the last average; with `find`, some may get none."""

    def __init__(self, named: Sequence[Named], comm: Comm, find: bool) -> None:
        self._named, self._comm, self._find = named, comm, find
        self._used: set[Parameter] = set()

    def note(self, parameter: Parameter) -> None:
        """Autograd has reached it, also in `no_sync`; a gradient of None counts as zeros."""
        if parameter.grad is not None or not self._find:  # None: a function did not use it
            self._used.add(parameter)

    def check(self) -> None:
        """Raise RuntimeError if some parameters got no gradient, and none may be left out."""
        unused = [name for name, parameter in self._named if parameter not in self._used]
        if unused and not self._find:
            raise RuntimeError(
                f"rank {dist.get_rank()}: DistributedDataParallel: expected backward to give every "
                f"parameter a gradient, got none for {len(unused)}: {', '.join(unused[:10])}. "
                "Others may wait for them. Pass find_unused_parameters=True if the loss may leave "
                "parameters out, or freeze them before wrapping: requires_grad_(False)"
            )

    def of_all_ranks(self) -> set[Parameter]:
        """Return what at least one rank has used, and start anew."""
        used, self._used = self._used, set()
        if not self._find:
            return used  # which is everything
        flags = [parameter in used for _, parameter in self._named]
        counts = torch.tensor(flags, dtype=torch.int32, device=self._named[0][1].device)
        self._comm.all_reduce(counts)
        pairs = zip(self._named, counts.tolist(), strict=True)
        return {parameter for (_, parameter), count in pairs if count}
