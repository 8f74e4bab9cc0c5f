"""The first milestone: a ring all-reduce on nothing but send and receive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from course.sandbox.forbidden import without_minidist, without_torch
from course.verdict import Wrong
from minidist.schedule.cost import Link

INSTEAD = "`isend` and `irecv`"
SIZE = 1003  # elements where traffic is counted: not all chunks are equally long


def check_ring(module: ModuleType) -> None:
    """On a rank: compare the module's collectives with sums of what every rank draws.

    Raises:
        Wrong: a result is not what it must be, or this rank sends more than it needs to.
    """
    with without_torch(INSTEAD), without_minidist(INSTEAD):
        _check_results(module)
        _check_traffic(module)


def _check_results(module: ModuleType) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for numel in (0, 1, ranks - 1, ranks, ranks + 1, 17):
        every = [_draw(r, numel) for r in range(ranks)]
        tensor = every[rank].clone()
        module.all_reduce(tensor)
        _compare(f"all_reduce of {numel} elements", tensor, torch.stack(every).sum(0))
    tables = torch.stack([_draw(r, ranks, 3) for r in range(ranks)])
    mine, right = tables[rank], tables.sum(0)[rank]
    before, part, whole = mine.clone(), mine.new_empty(3), mine.new_empty(ranks, 3)
    module.reduce_scatter(part, mine)
    _compare("reduce_scatter", part, right)
    _compare("reduce_scatter's input afterwards", mine, before)
    own = torch.full((3,), float(rank)).double()
    module.all_gather(whole, own)
    _compare("all_gather", whole, torch.arange(ranks).double()[:, None].expand(-1, 3))


def _check_traffic(module: ModuleType) -> None:
    ranks = dist.get_world_size()
    full, part = torch.ones(ranks * SIZE), torch.ones(SIZE)
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "all_reduce": (2, lambda: module.all_reduce(full)),
        "reduce_scatter": (1, lambda: module.reduce_scatter(part, full)),
        "all_gather": (1, lambda: module.all_gather(full, part)),
    }
    for name, (phases, call) in calls.items():
        steps = phases * (ranks - 1)
        with sends_recorded() as sent:
            call()
        if len(sent) > steps:
            raise Wrong(
                f"{name} gives the right result with {len(sent)} messages from this rank; "
                f"{steps} are enough on {ranks} ranks."
            )
        if sum(sent) > steps * part.nbytes:
            raise Wrong(
                f"{name} gives the right result, and this rank sends {sum(sent):,} bytes; "
                f"{steps * part.nbytes:,} are enough: {steps} messages of a chunk each."
            )


def _draw(rank: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).double()


def _compare(what: str, found: Tensor, right: Tensor) -> None:
    if not torch.allclose(found, right):
        raise Wrong(
            f"{what} gives {found.flatten().tolist()}, expected {right.flatten().tolist()}."
        )


# ---- what it costs ----


class _Slowed(NamedTuple):
    """A message that is done when the emulated link has carried it."""

    inner: Any
    end: float

    def wait(self) -> None:
        self.inner.wait()
        time.sleep(max(0.0, self.end - time.monotonic()))


@contextmanager
def sends_recorded(link: Link | None = None) -> Iterator[list[int]]:
    """Within it note the bytes of each message that this rank sends, over an emulated link if any.

    On the link a rank's messages follow one another, and each takes α + βn.
    """
    sent: list[int] = []
    free = 0.0
    original = dist.ProcessGroup.send

    def send(self: dist.ProcessGroup, tensors: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        nonlocal free
        nbytes = sum(tensor.nbytes for tensor in tensors)
        sent.append(nbytes)
        work = original(self, tensors, *args, **kwargs)
        if link is None:
            return work
        free = max(free, time.monotonic()) + link.alpha + link.beta * nbytes
        return _Slowed(work, free)

    with patch.object(dist.ProcessGroup, "send", send):
        yield sent
