"""The claims of the ring chapter, each shown by a run."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist.collectives.runtime.executor import execute
from minidist.profiler.spans import Span
from minidist.profiler.timeline import mark
from minidist.schedule import algorithms
from minidist.schedule.cost import Link, nodes, seconds
from minidist.schedule.program import program
from minidist.schedule.schedule import Schedule
from minidist.schedule.traffic import replay


def ring_from(first: int, second: int, ranks: int = 4) -> Schedule:
    reduce_scatter = algorithms.ring_reduce_scatter(ranks, first=first)
    all_gather = algorithms.ring_all_gather(ranks, first=second)
    return reduce_scatter.then(all_gather, "ring", "all_reduce")


@pytest.mark.claim("B1")
def test_two_phases_of_n_minus_1_steps_give_every_rank_every_sum() -> None:
    for ranks in (1, 2, 3, 4, 5, 8):
        everyone = tuple(range(ranks))
        ring = replay(algorithms.ring_all_reduce(ranks))
        middle = ring.state(after=ranks - 1)
        assert ring.steps == 2 * (ranks - 1)
        assert [middle[rank][rank] for rank in range(ranks)] == [everyone] * ranks
        assert all(row.count(everyone) == (1 if ranks > 1 else ranks) for row in middle)
        assert ring.state() == ((everyone,) * ranks,) * ranks


@pytest.mark.claim("B2")
def test_the_ring_as_printed_gets_nothing_right_and_both_repairs_everything() -> None:
    printed = replay(ring_from(0, 0))
    full = (0, 1, 2, 3)
    owners = [row.index(full) for row in printed.state(after=3)]
    assert owners == [1, 2, 3, 0], "rank i owns slice i + 1, not its home slice"
    assert (printed.right(), printed.wanted) == (0, 16)
    assert replay(ring_from(0, 1)).right() == 16
    assert replay(ring_from(-1, 0)).right() == 16


@pytest.mark.claim("B2")
def test_on_real_ranks_the_ring_as_printed_is_wrong_too() -> None:
    def summed(first: int, second: int) -> list[int]:
        mine = torch.full((4,), 10 ** dist.get_rank())
        execute(program(ring_from(first, second), dist.get_rank()), mine, torch.Tensor.add_)
        return mine.tolist()

    def run() -> None:
        assert 1111 not in summed(0, 0)
        assert summed(0, 1) == summed(-1, 0) == [1111] * 4

    minidist.launch(run, 4)


@pytest.mark.claim("B6")
def test_with_many_nodes_tree_and_hierarchy_beat_the_ring() -> None:
    cluster = nodes(8, inside=Link(2e-6, 1 / 200e9), between=Link(10e-6, 1 / 25e9))
    ring = seconds(algorithms.ring_all_reduce(4096), 1e5, cluster)
    tree = seconds(algorithms.tree_all_reduce(4096), 1e5, cluster)
    layered = seconds(algorithms.hierarchical_all_reduce(4096, local=8), 1e5, cluster)
    assert tree < layered < ring
    ring = seconds(algorithms.ring_all_reduce(4096), 1e9, cluster)
    layered = seconds(algorithms.hierarchical_all_reduce(4096, local=8), 1e9, cluster)
    assert layered < ring


@pytest.mark.claim("B9")
def test_torch_s_ddp_reduces_during_the_same_backward_and_never_in_a_forward() -> None:
    def marked_all_reduce(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sending = mark(f"bucket {bucket.index()}", "communication")

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            sending.end()
            return future.value()[0] / dist.get_world_size()

        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
        sent: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
        return sent

    def train(warm_up: int = 3, steps: int = 2) -> list[Span]:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(512, 512) for _ in range(6)]
        net = torch.nn.Sequential(*layers)
        model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=2)
        model.register_comm_hook(None, marked_all_reduce)
        optimizer, waits = torch.optim.SGD(model.parameters(), lr=0.1), []
        # The gradient of the first layer comes last: from then on backward only waits.
        layers[0].weight.register_hook(lambda _: waits.append(mark("waits", "waiting")))  # type: ignore[no-untyped-call]

        def step() -> None:
            with mark("forward"):
                loss = model(torch.randn(256, 512)).square().mean()
            with mark("backward"):
                loss.backward()
                waits.pop().end()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(warm_up):
            step()
        dist.barrier()
        with minidist.timeline() as line:
            for _ in range(steps):
                step()
        return line.spans

    for spans in minidist.launch(train, 2):
        buckets = [span for span in spans if span.lane == "communication"]
        of = {
            name: [span for span in spans if span.name == name]
            for name in ("forward", "backward", "waits", "optimizer")
        }
        assert len(of["forward"]) == 2
        for backward, waits, optimizer in zip(
            of["backward"], of["waits"], of["optimizer"], strict=True
        ):
            own = [b for b in buckets if backward.start <= b.start < optimizer.end]
            assert len(own) > 1
            assert min(each.start for each in own) < waits.start, "while it computes"
            assert max(each.end for each in own) <= waits.end <= optimizer.start
        for forward in of["forward"]:
            assert all(b.end <= forward.start or b.start >= forward.end for b in buckets)


@pytest.mark.claim("B10")
def test_fp16_overflows_when_summed_first_and_vanishes_when_divided_first_as_in_ddp() -> None:
    def averaged(value: float) -> tuple[float, float, float]:
        sum_first = torch.tensor([value], dtype=torch.float16)
        divide_first = sum_first / dist.get_world_size()
        minidist.all_reduce(sum_first, minidist.ReduceOp.AVG)
        minidist.all_reduce(divide_first)
        net = torch.nn.Linear(1, 1, bias=False, dtype=torch.float16)
        model = torch.nn.parallel.DistributedDataParallel(net)
        model(torch.tensor([[value]], dtype=torch.float16)).sum().backward()
        assert net.weight.grad is not None
        return sum_first.item(), divide_first.item(), net.weight.grad.item()

    def run() -> None:
        assert averaged(1.5) == (1.5, 1.5, 1.5)
        assert averaged(20_000.0) == (float("inf"), 20_000.0, 20_000.0)
        kept, *gone = averaged(1.2e-7)
        assert kept > 0
        assert gone == [0, 0]

    minidist.launch(run, 4, device="cpu")


@pytest.mark.claim("B10")
def test_a_sum_in_bf16_rounds_at_each_addition() -> None:
    for ranks, off in {8: 0.0032, 64: 0.0076, 1024: 0.188}.items():
        parts = 1 + torch.randn(ranks, 5000, generator=torch.Generator().manual_seed(1))
        summed = torch.zeros(5000, dtype=torch.bfloat16)
        for part in parts:  # as a chunk of a ring goes from rank to rank
            summed += part.bfloat16()
        exact = parts.double().sum(0)
        error = float((summed - exact).norm() / exact.norm())
        assert error == pytest.approx(off, rel=0.05)
        assert float((parts.sum(0) - exact).norm() / exact.norm()) < 1e-6, "in fp32"
