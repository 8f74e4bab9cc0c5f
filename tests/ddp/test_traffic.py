"""What DDP sends, and when: counted, and by the order of events."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from minidist import Counted, DistributedDataParallel, Ours, launch, timeline
from minidist.parallel.ddp import reducer
from minidist.profiler.spans import Span
from tests.support.processes import wait_until
from tests.support.training import mlp, numbers

EACH = {"bucket_cap_mb": 1e-6, "first_bucket_mb": 1e-6}  # a bucket for each parameter


def test_one_broadcast_for_each_dtype_at_the_start_and_of_buffers_before_each_forward() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2).double()
            self.norm = nn.BatchNorm1d(4)  # float32 and an int64
            self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.norm(self.first(x) * self.mask).double())

    def run() -> list[list[str]]:
        comm, found = Counted(Ours()), []
        x = numbers(dist.get_rank(), 0, 3, 4, dtype=torch.float32)

        def names(what: Callable[[], Any]) -> Any:
            comm.clear()
            result = what()
            found.append([call.name for call in comm.calls])
            return result

        ddp = names(lambda: DistributedDataParallel(Net(), comm=comm))
        out = names(lambda: ddp(x))
        names(out.sum().backward)
        with torch.no_grad():
            names(lambda: ddp(x))
            names(lambda: ddp(x))
        with ddp.no_sync():
            names(lambda: ddp(x).sum().backward())
        plain = DistributedDataParallel(Net(), broadcast_buffers=False, comm=comm)
        names(lambda: plain(x))
        return found

    start, forward, backward, evaluated, again, quiet, without = launch(run, 2)[1]
    assert start == ["broadcast"] * 4, "float32, float64, int64, bool"
    assert forward == ["broadcast"] * 3, "float32, int64, bool"
    assert backward == ["all_reduce"] * 2, "a bucket for float32, one for float64"
    assert (evaluated, again) == (["broadcast"] * 3, []), "nothing has changed them in between"
    assert quiet == without == []


class Spy(Ours):
    """Notes when an all-reduce is asked for."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def all_reduce(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.events.append("sent")
        return super().all_reduce(tensor, *args, **kwargs)


@pytest.mark.claim("C5")
def test_buckets_leave_during_backward_and_the_timeline_shows_it() -> None:
    def note(events: list[str], name: str, _: torch.Tensor) -> None:
        events.append(name)

    def run() -> tuple[list[str], list[Span]]:
        events: list[str] = []
        net = mlp(5, 4, 3, 2)
        for name, parameter in net.named_parameters():
            parameter.register_hook(partial(note, events, name))
        ddp = DistributedDataParallel(net, comm=Spy(events), **EACH)
        x = numbers(dist.get_rank(), 0, 3, 5)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
        for _ in range(2):
            with timeline() as line:
                ddp(x).mean().backward()
                optimizer.step()
        return events, line.spans

    for rank, (events, spans) in enumerate(launch(run, 2)):
        first, second = events[:12], events[12:]
        assert sorted(first) == sorted(second)
        assert second[1::2] == ["sent"] * 6, "each leaves before the next is made"
        names = ["backward", *(f"bucket {index}" for index in range(6)), "forward", "optimizer"]
        assert sorted(span.name for span in spans) == names
        assert {span.rank for span in spans} == {rank}
        at = {span.name: span for span in spans}
        assert at["forward"].end <= at["backward"].start
        assert at["bucket 5"].end <= at["optimizer"].start
        assert max(span.end for span in spans) == at["optimizer"].end


def test_old_buckets_are_gone_before_new_ones_are_built() -> None:
    def run(view: bool, hooked: bool) -> list[int]:
        ddp = DistributedDataParallel(mlp(5, 4, 3), gradient_as_bucket_view=view, **EACH)
        if hooked:
            ddp.register_comm_hook(None, allreduce_hook)
        old = [ref(bucket.flat) for bucket in ddp.buckets]
        alive, build = [], reducer.build_buckets

        def spy(*args: Any) -> Any:
            wait_until(lambda: not any(buffer() is not None for buffer in old), 10)
            alive.append(sum(buffer() is not None for buffer in old))
            return build(*args)

        reducer.build_buckets = spy
        for _ in range(3):
            ddp.zero_grad()
            ddp(numbers(dist.get_rank(), 0, 3, 5)).mean().backward()
        reducer.build_buckets = build
        return alive

    def every() -> list[list[int]]:
        return [run(False, False), run(True, True)]

    assert launch(every, 2) == [[[0]] * 2] * 2, "built once, when none of the old ones was alive"
