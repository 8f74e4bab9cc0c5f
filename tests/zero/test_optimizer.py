"""ZeroOptimizer trains as one process does, whatever is in the model; what it keeps and sends."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from minidist import Counted, DistributedDataParallel, Ours, ZeroOptimizer, launch, timeline
from tests.support.training import MODES, Twins, mlp, numbers, squares


def odd() -> nn.Module:
    """Sizes that nothing divides; the first matrix lies transposed in memory."""
    net = mlp(5, 7, 3, 1)
    net[0].weight = nn.Parameter(net[0].weight.detach().t().contiguous().t())
    return net


def by_decay(net: nn.Module) -> list[dict[str, Any]]:
    """Matrices are decayed, vectors are not: as is usual."""
    wide = [p for p in net.parameters() if p.dim() > 1]
    return [
        {"params": wide, "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.dim() < 2]},
    ]


# ---- training ----


def test_a_step_sums_what_no_sync_has_kept_though_no_backward_has_sent() -> None:
    def run() -> str:
        counted = Counted(Ours(algorithm="ring"))
        twins = Twins(odd, "stage 2", comm=counted)
        counted.clear()
        with twins.zero.no_sync():
            twins.backward(squares, 0)
        assert not counted.calls
        assert all(p.grad is not None for p in twins.net.parameters())
        twins.step()
        return twins.apart()

    assert launch(run, 2) == [""] * 2


def test_channels_last_and_views_on_ddp_copy_no_gradient() -> None:
    """On DDP a piece's gradient is a part of the parameter's, in place."""

    def run() -> None:
        net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(8, 3))
        net = net.to(memory_format=torch.channels_last)
        ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
        zero = ZeroOptimizer(ddp.parameters(), SGD, lr=0.1)
        x = numbers(dist.get_rank(), 0, 2, 3, 2, 3, dtype=torch.float32)
        ddp(x).square().mean().backward()
        zero.average()
        borrowed = [
            shard.grad.untyped_storage().data_ptr() == parameter.grad.untyped_storage().data_ptr()
            for bucket in zero.buckets
            for parameter, shard in zip(bucket.parameters, bucket.shards, strict=True)
            if shard.grad is not None and parameter.grad is not None
        ]
        assert borrowed
        assert all(borrowed)

    launch(run, 2)


# ---- an optimizer in shape ----


def test_schedulers_closures_groups_and_hooks_work_as_on_any_optimizer() -> None:
    def run() -> list[str]:
        found = []
        for mode in MODES:
            twins = Twins(odd, mode, groups=by_decay, lr=0.05)
            both = twins.zero, twins.bare
            cycles = [OneCycleLR(each, max_lr=0.1, total_steps=9) for each in both]
            steps = [StepLR(each, 2, 0.5) for each in both]
            for step in range(3):
                twins.backward(squares, step)
                twins.step()
                for scheduler in (*cycles, *steps):
                    scheduler.step()
                for optimizer in both:
                    optimizer.param_groups[1]["weight_decay"] = 0.3
            found.append(twins.apart())
            called: list[str] = []
            twins.zero.register_step_pre_hook(partial(made, called, "before"))
            twins.zero.register_step_post_hook(partial(made, called, "after"))

            def closure(twins: Twins = twins, called: list[str] = called) -> torch.Tensor:
                called.append("closure")
                assert torch.is_grad_enabled()
                twins.zero.zero_grad()
                loss = squares(twins.model, dist.get_rank(), 7)
                loss.backward()
                return loss

            twins.whole(squares, 7)
            loss = twins.zero.step(closure)
            twins.bare.step()
            assert float(loss.detach()) > 0
            assert called == ["before", "closure", "after"]
            found.append(twins.apart())
        return found

    assert launch(run, 2) == [[""] * 6] * 2


# ---- what is kept, and when it is freed ----


@pytest.mark.claim("D5")
def test_stage_2_holds_the_gradients_of_two_buckets_at_most_in_backward() -> None:
    """And no parameter's whole gradient once it has been packed."""

    def run() -> None:
        net = mlp(8, 8, 8, 8, 8, 8, 8)
        zero = ZeroOptimizer(net.parameters(), SGD, stage=2, lr=0.1, bucket_cap_mb=1e-6)
        whole, packed = [], []

        def look(_: Any) -> None:
            whole.append(sum(p.grad is not None for p in net.parameters()))
            packed.append(sum(each.flat_grad is not None for each in zero.buckets))

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(look)
        squares(net, dist.get_rank(), 0).backward()
        assert len(zero.buckets) == 12
        assert whole == [0] * 12
        assert max(packed) <= 2
        assert all(p.grad is None for p in net.parameters())
        assert all(each.flat_grad is None for each in zero.buckets)
        assert all(each.grad_shard is not None for each in zero.buckets)

        net.requires_grad_(True)
        stale = net(torch.ones(1, 8, dtype=torch.float64)).sum()
        zero.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            stale.backward()  # autograd sees that parameters were written

    launch(run, 2)


# ---- what is sent, and when ----


class Spy(Ours):
    """Tells what it is asked for, and when all-gathers are waited for."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def reduce_scatter(self, output: Any, input: Any, *rest: Any, **options: Any) -> Any:
        self._events.append(f"reduce {len(input)}")
        return super().reduce_scatter(output, input, *rest, **options)

    def all_gather(self, output: Any, input: Any, async_op: bool = False) -> Any:
        self._events.append("gather")
        handle: Any = super().all_gather(output, input, async_op)
        wait = handle.wait
        handle.wait = lambda: (self._events.append("wait"), wait())
        return handle


def made(events: list[str], name: str, *_: Any) -> None:
    events.append(name)


def test_stage_2_sends_while_backward_still_makes_gradients_and_all_gathers_are_under_way() -> None:
    """In the order of backward, whatever the groups: vectors of all layers hold nobody up."""

    def run() -> None:
        events: list[str] = []
        net = mlp(4, 4, 4, 4)
        options: dict[str, Any] = {"lr": 0.1, "bucket_cap_mb": 1.2e-4, "comm": Spy(events)}
        zero = ZeroOptimizer(by_decay(net), SGD, stage=2, **options)
        for name, parameter in net.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(made, events, name))
        with timeline() as line:
            squares(net, dist.get_rank(), 0).backward()
            matrix, vectors = "reduce 16", "reduce 12"
            assert [e for e in events if e.startswith("reduce")] == [matrix] * 3 + [vectors]
            assert events.index(matrix) < events.index("0.weight")
            events.clear()
            zero.step()
        assert events == ["gather"] * 4 + ["wait"] * 4
        sent = product(["communication"], ["reduce-scatter", "all-gather"], "0123")
        spans = {f"{span.lane} {span.name}" for span in line.spans}
        assert spans == {"compute backward", "compute optimizer", *map(" ".join, sent)}

    launch(run, 2)
