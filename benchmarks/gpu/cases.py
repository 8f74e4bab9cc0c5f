"""What each collective is called with, and what every rank must hold after it.

Written from what the names mean in torch.distributed; nothing here knows how minidist does it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from tests.support import collectives as oracle

BESIDE = 7  # what lies between the elements of a strided tensor, and must stay there

data, all_reduced = (lru_cache(each) for each in (oracle.data, oracle.all_reduced))  # only read


class Setting:
    """One call on one rank: makes its tensors and knows what must become of them.

    `numel`: elements of one part; whole tensors have a part for each rank.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        numel: int,
        dtype: torch.dtype,
        strided: bool,
        device: torch.device,
    ) -> None:
        self.rank, self.ranks, self.numel = rank, ranks, numel
        self.dtype, self.strided, self.device = dtype, strided, device
        self.root = ranks - 1
        self._wanted: list[tuple[torch.Tensor, torch.Tensor]] = []

    def part(self, rank: int) -> torch.Tensor:
        """What a rank comes with, on the CPU."""
        return data(rank, self.numel, self.dtype)

    def parts(self, rank: int) -> torch.Tensor:
        """A part for each rank: N rows."""
        return data(rank, (self.ranks, self.numel), self.dtype)

    def put(self, start: torch.Tensor, want: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor to pass: holds `start` now, must hold `want` later; by default still that."""
        if self.strided:
            wide = torch.full((start.numel(), 2), BESIDE, dtype=self.dtype, device=self.device)
            tensor, beside = wide[:, 0], wide[:, 1]
            self._wanted.append((beside, torch.full_like(beside, BESIDE, device="cpu")))
        else:
            tensor = torch.empty(start.numel(), dtype=self.dtype, device=self.device)
        tensor.copy_(start.reshape(-1))
        self._wanted.append((tensor, (start if want is None else want).reshape(-1)))
        return tensor

    def blank(self, want: torch.Tensor) -> torch.Tensor:
        """A tensor that must be filled with `want`."""
        return self.put(torch.full_like(want, BESIDE), want)

    def right(self) -> bool:
        """Whether all tensors hold what they must."""
        return all(oracle.same(tensor.cpu().contiguous(), want) for tensor, want in self._wanted)


Arguments = tuple[Any, ...]


def _all_reduce(s: Setting) -> Arguments:
    # As large as the whole of other calls, so that messages are; chunks of unequal size.
    numel = s.numel if s.numel < 2 else s.numel * s.ranks - 1
    return (s.put(data(s.rank, numel, s.dtype), all_reduced(s.ranks, numel, s.dtype)),)


def _broadcast(s: Setting) -> Arguments:
    return s.put(s.part(s.rank), s.part(s.root)), s.root


def _reduce(s: Setting) -> Arguments:
    if s.rank == s.root:
        return s.put(s.part(s.rank), all_reduced(s.ranks, s.numel, s.dtype)), s.root
    return s.part(s.rank).clone().to(s.device), s.root  # what is left there nobody has promised


def _reduce_scatter_tensor(s: Setting) -> Arguments:
    total = all_reduced(s.ranks, (s.ranks, s.numel), s.dtype)
    return s.blank(total[s.rank]), s.put(s.parts(s.rank))


def _reduce_scatter(s: Setting) -> Arguments:
    total = all_reduced(s.ranks, (s.ranks, s.numel), s.dtype)
    return s.blank(total[s.rank]), [s.put(row) for row in s.parts(s.rank)]


def _all_gather_into_tensor(s: Setting) -> Arguments:
    everyone = torch.cat([s.part(rank) for rank in range(s.ranks)])
    return s.blank(everyone), s.put(s.part(s.rank))


def _all_gather(s: Setting) -> Arguments:
    return [s.blank(s.part(rank)) for rank in range(s.ranks)], s.put(s.part(s.rank))


def _gather(s: Setting) -> Arguments:
    mine = s.put(s.part(s.rank))
    if s.rank != s.root:
        return mine, None, s.root
    return mine, [s.blank(s.part(rank)) for rank in range(s.ranks)], s.root


def _scatter(s: Setting) -> Arguments:
    mine = s.blank(s.parts(s.root)[s.rank])
    if s.rank != s.root:
        return mine, None, s.root
    return mine, [s.put(row) for row in s.parts(s.root)], s.root


def _all_to_all_single(s: Setting) -> Arguments:
    arrived = torch.cat([s.parts(src)[s.rank] for src in range(s.ranks)])
    return s.blank(arrived), s.put(s.parts(s.rank))


def _all_to_all(s: Setting) -> Arguments:
    arrived = [s.blank(s.parts(src)[s.rank]) for src in range(s.ranks)]
    return arrived, [s.put(row) for row in s.parts(s.rank)]


def _ring_shift(s: Setting) -> Arguments:
    return (s.put(s.part(s.rank), s.part((s.rank - 1) % s.ranks)),)


def _barrier(s: Setting) -> Arguments:
    return ()


CASES: dict[str, Callable[[Setting], Arguments]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter": _reduce_scatter,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
    "ring_shift": _ring_shift,
    "barrier": _barrier,
}
