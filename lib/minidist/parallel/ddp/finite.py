"""Gradients that are no numbers: whose they were, and of which parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from minidist.collectives.runtime.group import global_rank
from minidist.comm.comm import Comm
from minidist.parallel.ddp.bucket import Bucket
from minidist.parallel.sharding.partition import Named


class Finite:
    """Looks at this rank's own gradients as they come, and at the sums; names ranks if need be.

    Nothing is sent as long as the sums are finite: they are alike on all ranks, so all ranks know.

    Args:
        named: the parameters, alike on all ranks.
        comm: between the ranks.
        wanted: if not, nothing is looked at.
    """

    def __init__(self, named: Sequence[Named], comm: Comm, wanted: bool) -> None:
        self._named, self._comm, self._wanted = named, comm, wanted
        self._own: dict[Parameter, torch.Tensor] = {}

    def look(self, parameter: Parameter) -> None:
        """This rank's gradient is whole, and not yet averaged."""
        if self._wanted:
            assert parameter.grad is not None
            self._own[parameter] = torch.isfinite(parameter.grad).all()

    def check(self, buckets: Sequence[Bucket], step: int) -> None:
        """Raise RuntimeError, on all ranks, if an averaged gradient is not finite."""
        if not self._wanted:
            return
        own, self._own = self._own, {}
        sums = [torch.isfinite(bucket.buffer).all() for bucket in buckets]
        if torch.stack(sums).all():
            return
        yes = torch.ones((), dtype=torch.bool, device=buckets[0].buffer.device)
        mine = torch.stack([own.get(parameter, yes) for _, parameter in self._named]).int()
        everyone = mine.new_empty(self._comm.ranks * len(mine))
        self._comm.all_gather(everyone, mine)
        rows = everyone.view(self._comm.ranks, -1).tolist()
        raise RuntimeError(f"step {step}: {self._blame(rows) or self._overflow(buckets)}")

    def _blame(self, rows: list[list[int]]) -> str:
        """Every rank whose own gradients were not finite, and the first parameter of each."""
        found = []
        for rank, row in enumerate(rows):
            bad = [name for (name, _), fine in zip(self._named, row, strict=True) if not fine]
            if bad:
                more = f" and {len(bad) - 1} more parameters" if len(bad) > 1 else ""
                where = f"rank {global_rank(rank, self._comm.group)}"
                found.append(f"{where}: the gradient of {bad[0]}{more} holds NaN or infinity")
        return "; ".join(found)

    @staticmethod
    def _overflow(buckets: Sequence[Bucket]) -> str:
        bad = [
            name
            for bucket in buckets
            for name, p in zip(bucket.names, bucket.parameters, strict=True)
            if not torch.isfinite(bucket.views[p]).all()
        ]
        return (
            f"the mean gradient of {', '.join(bad[:10])} is not finite, though every rank's own "
            "is: it overflows where it is summed"
        )
