"""What is peculiar to NCCL, with Gloo in its place: batches of messages, queued by the caller."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup, Work

import minidist
from minidist import launch
from minidist.collectives.runtime import executor, work
from minidist.collectives.runtime.executor import execute
from minidist.schedule import program as plan
from minidist.schedule.algorithms import ring_all_reduce
from tests.support.collectives import all_reduced, data, same


class Batch:
    """The one work of a batch."""

    def __init__(self, works: list[Work]) -> None:
        self.works = works

    def wait(self) -> None:
        for each in self.works:
            each.wait()


@contextmanager
def nccl() -> Iterator[list[int]]:
    """Gloo takes batches, as NCCL does, and slowly; the number of messages in each."""
    works, posted = list[Work](), list[int]()

    def end(*_: object) -> Batch:
        posted.append(len(works))
        return Batch(list(works))

    def slowly(post: Any) -> Any:
        def noted(*args: Any) -> Any:
            time.sleep(0.005)
            works.append(post(*args))
            return works[-1]

        return noted

    flight = executor._Flight
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist.ProcessGroupGloo, "supports_coalescing", True, raising=False)
        patch.setattr(ProcessGroup, "_start_coalescing", lambda *_: works.clear())
        patch.setattr(ProcessGroup, "_end_coalescing", end)
        for name in ("send", "recv"):
            patch.setattr(ProcessGroup, name, slowly(getattr(ProcessGroup, name)))
        patch.setattr(executor, "_Flight", lambda p, r, group, _: flight(p, r, group, True))
        patch.setattr(work, "stream_ordered", lambda device, group: True)
        yield posted


class Centered(torch.autograd.Function):
    """As SyncBatchNorm: torch's all-reduce in forward and in backward, in the model's group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _centered(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _centered(gradient)


def _centered(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(0)
    dist.all_reduce(mean)
    return x - mean / dist.get_world_size()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Centered.apply(layer(x)).relu()  # type: ignore[no-untyped-call]
        return x.square().sum()


def beside_torch_s() -> tuple[list[bool], list[int], bool]:
    """torch's all-reduce while ours is on its way; and within a model that DDP trains."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, gradients = [], []
    with nccl() as posted:
        for _ in range(5):
            ours, theirs = data(rank, 1000), data(rank, 10)
            flying = minidist.all_reduce(ours, async_op=True, check=False)
            dist.all_reduce(theirs)
            assert flying is not None
            flying.wait()
            right += [same(ours, all_reduced(ranks, 1000)), same(theirs, all_reduced(ranks, 10))]
        messages = posted[:]
        small: dict[str, Any] = {"bucket_cap_mb": 1e-5, "first_bucket_mb": 1e-5}  # many buckets
        comm = minidist.Ours(algorithm="ring")
        theirs_too = nn.parallel.DistributedDataParallel(Net())
        for model in (minidist.DistributedDataParallel(Net(), comm=comm, **small), theirs_too):
            model(data(rank, (8, 4)).sin()).backward()
            gradients.append(
                torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            )
    return right, messages, torch.allclose(gradients[0], gradients[1], rtol=1e-4)


@pytest.mark.parametrize("ranks", [2, 4])
def test_torch_s_collectives_beside_ours_are_not_swallowed(ranks: int) -> None:
    for right, messages, alike in launch(beside_torch_s, ranks):
        assert right == [True] * 10
        assert set(messages) == {2}, "both messages of a step in one batch"
        assert alike, "as under torch's DDP"


class OnGpu:
    """In the place of a tensor of 256 MiB."""

    is_cuda = True

    def __len__(self) -> int:
        return 64 << 20

    def element_size(self) -> int:
        return 4


def test_a_gpu_s_messages_are_long_because_the_host_queues_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []

    def laid_out(*how: Any) -> None:
        found.append(lay_out(*how))
        raise KeyboardInterrupt  # before it looks for memory

    lay_out = plan.lay_out
    monkeypatch.setattr(plan, "lay_out", laid_out)
    ring = plan.program_of(ring_all_reduce, 8, 0)
    chunks: Any = dict.fromkeys(range(8), OnGpu())
    with pytest.raises(KeyboardInterrupt):
        execute(ring, chunks, torch.Tensor.add_)
    assert {each.high - each.low for post in found[0].posts for each in post.sends} == {16 << 20}
    whole = [lay_out(ring, 64 << 20, 4, most).posts for most in (plan.MAX_ON_GPU, plan.MAX_MESSAGE)]
    assert [len(posts) for posts in whole] == [14, 112]


def refuses(kind: str) -> str:
    """The error with which a message's post fails, as it comes out."""
    error = getattr(torch, kind, RuntimeError)("device-side assert")

    def post(*_: Any) -> None:
        raise error

    with nccl(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessGroup, "recv", post)
        try:
            minidist.all_reduce(torch.ones(4), algorithm="ring", check=False)
        except RuntimeError as raised:
            return type(raised).__name__
    return "nothing"


def test_a_gpu_s_own_error_blames_no_peer() -> None:
    kinds = ["AcceleratorError", "OutOfMemoryError", "from NCCL"]
    said = [*kinds[:2], "CommunicationError"]
    assert launch(lambda: [*map(refuses, kinds)], 2) == [said] * 2
