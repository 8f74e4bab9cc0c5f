"""ZeroOptimizer trains as one process does, whatever is in the model; what it keeps and sends."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from minidist import Counted, DistributedDataParallel, Ours, ZeroOptimizer, launch, timeline
from minidist.comm.comm import Handle
from minidist.parallel.zero.bucket import ShardedBucket
from minidist.parallel.zero.optimizer import holder_of
from minidist.parallel.zero.slices import Slices
from tests.ddp.test_unused import Experts
from tests.support.training import COMMS, LOCAL, MODES, Twins, mlp, numbers, quiet, squares


def odd() -> nn.Module:
    """Sizes that nothing divides."""
    return mlp(5, 7, 3, 1)


def by_decay(net: nn.Module) -> list[dict[str, Any]]:
    """Matrices are decayed, vectors are not: as is usual."""
    wide = [p for p in net.parameters() if p.dim() > 1]
    return [
        {"params": wide, "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.dim() < 2]},
    ]


# ---- training ----


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_it_trains_as_one_process_does_on_the_whole_batch(ranks: int) -> None:
    def run() -> dict[str, str]:
        found = {}
        for turn, mode in enumerate(MODES, start=ranks):
            for name in [*COMMS][turn % 2 :: 2]:  # with one more rank the others
                twins = Twins(odd, mode, groups=by_decay, comm=COMMS[name](), lr=0.01)
                found[f"{mode}, {name}"] = twins.train().apart()
            sgd = Twins(odd, mode, SGD, lr=0.1, momentum=0.9, nesterov=True)
            found[f"{mode}, SGD"] = sgd.train().apart()
        return {name: wrong for name, wrong in found.items() if wrong}

    assert launch(run, ranks) == [{}] * ranks


def accumulating(twins: Twins, turns: int, wait: Any) -> None:
    """Several backwards to a step, all but the last within `wait()`."""
    for step in range(2):
        for turn in range(turns):
            number = 10 * step + turn
            if turn < turns - 1:
                with wait(twins):
                    squares(twins.model, dist.get_rank(), number).backward()
            else:
                squares(twins.model, dist.get_rank(), number).backward()
            twins.whole(squares, number)
        twins.step()


def no_sync(twins: Twins) -> Any:
    """What the mode has for it."""
    return quiet(twins.model) if twins.model is not twins.net else twins.zero.no_sync()


def test_gradients_add_up_over_backwards_with_and_without_no_sync() -> None:
    def run() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for mode in MODES:
            for name, wait in (("no_sync", no_sync), ("sync", lambda _: nullcontext())):
                twins = Twins(odd, mode)
                accumulating(twins, 3, wait)
                found[f"{mode}, {name}"] = twins.apart()
        counted = Counted(Ours(algorithm="ring"))
        twins = Twins(odd, "stage 2", comm=counted)
        counted.clear()
        with twins.zero.no_sync():
            twins.backward(squares, 0)
        quiet_calls = len(counted.calls), all(p.grad is not None for p in twins.net.parameters())
        twins.step()  # and never a backward that sends
        found["no_sync alone"] = twins.apart()
        found["sent in no_sync"] = "" if quiet_calls == (0, True) else str(quiet_calls)
        return {name: wrong for name, wrong in found.items() if wrong}

    assert launch(run, 2) == [{}] * 2


def routed(model: Any, rank: int, step: int) -> torch.Tensor | None:
    """Rank r uses part r, at last nobody any; in step 2 rank 0 has no loss at all."""
    if (rank, step) == (0, 2):
        return None
    which = {0: [0], 1: [rank % 2], 2: [0]}.get(step, [])
    return model(numbers(rank, step, 3, 4), which).square().mean()


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_may_leave_out_different_parameters_and_what_none_used_is_left_alone(
    ranks: int,
) -> None:
    """Decay and momentum would change it; state would be kept of it."""

    def run() -> dict[str, str]:
        found = {}
        for turn, mode in enumerate(LOCAL):
            for place, (name, comm) in enumerate(COMMS.items()):
                to_none = (turn + place) % 2 == 0
                twins = Twins(Experts, mode, comm=comm(), lr=0.01, weight_decay=0.5)
                for step in range(5):
                    twins.backward(routed, step)
                    twins.step(to_none)
                found[f"{mode}, {name}, {to_none}"] = twins.apart()
        on_ddp = Twins(Experts, "stage 1 on DDP", find=True, weight_decay=0.5, lr=0.01)
        found["DDP"] = on_ddp.train(routed, (0, 1, 3)).apart()
        return {name: wrong for name, wrong in found.items() if wrong}

    assert launch(run, ranks) == [{}] * ranks


# ---- models ----


class Zoo(nn.Module):
    """Tied, frozen, strided, scalar, empty; several dtypes; a plain tensor among parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(5, 6).t())
        self.gaps = nn.Parameter(torch.randn(6, 4)[:, ::2])
        self.scalar = nn.Parameter(torch.tensor(0.7))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.small = nn.Linear(6, 6, dtype=torch.bfloat16)
        self.large = nn.Linear(6, 3, dtype=torch.float64)
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.frozen(self.tied(self.first(x).tanh()))
        z = self.conv(x.repeat(1, 3).view(-1, 3, 2, 3)).sum((1, 2, 3))
        out = self.small(y.bfloat16()).float().sum(1) + self.large(y.double()).sum(1)
        out = out + z + (y @ self.turned).sum(1) + (y @ self.gaps).sum(1)
        return out * self.scalar + self.empty.sum() + (self.phase * self.phase.conj()).sum().real


def sixes(model: Any, rank: int, step: int) -> torch.Tensor:
    return model(numbers(rank, step, 3, 6, dtype=torch.float32)).square().mean()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_model_may_hold_whatever_torch_allows(ranks: int) -> None:
    def run() -> dict[str, str]:
        found = {}
        for mode in MODES:
            if mode == "stage 1 on DDP":  # whose buckets know no complex numbers of 0 elements
                continue
            twins = Twins(Zoo, mode, Adam, lr=0.01)
            before = twins.net.conv.weight.stride()
            twins.train(sixes)
            assert twins.net.conv.weight.stride() == before
            assert twins.net.tied.weight is twins.net.first.weight
            found[mode] = twins.apart(5e-2)  # bfloat16
            exact = [(twins.net.large, twins.alone.large), (twins.net.conv, twins.alone.conv)]
            for mine, right in exact:
                torch.testing.assert_close(mine.weight, right.weight, rtol=1e-3, atol=1e-4)
        return {name: wrong for name, wrong in found.items() if wrong}

    assert launch(run, ranks) == [{}] * ranks


def test_channels_last_and_views_on_ddp_copy_no_gradient() -> None:
    """On DDP a piece's gradient is a part of the parameter's, in place."""

    def run() -> bool:
        net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(8, 3))
        net = net.to(memory_format=torch.channels_last)
        ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
        zero = ZeroOptimizer(ddp.parameters(), SGD, lr=0.1)
        x = numbers(dist.get_rank(), 0, 2, 3, 2, 3, dtype=torch.float32)
        ddp(x).square().mean().backward()
        zero.average()
        borrowed = []
        for part in zero.buckets:
            for parameter, piece in zip(part.parameters, part.shards, strict=True):
                if piece.grad is not None:
                    same = parameter.grad.untyped_storage().data_ptr()
                    borrowed.append(piece.grad.untyped_storage().data_ptr() == same)
        return bool(borrowed) and all(borrowed)

    assert all(launch(run, 2))


def test_parameters_may_be_frozen_and_freed_between_steps() -> None:
    def run() -> list[str]:
        found = []
        for mode in LOCAL:
            twins = Twins(odd, mode)
            for step in range(4):
                for net in (twins.net, twins.alone):
                    net[0].requires_grad_(step != 1)
                    net[2].weight.requires_grad_(step > 1)
                twins.backward(squares, step)
                twins.step()
            found.append(twins.apart())
        begun_frozen = Twins(lambda: frozen_head(odd()), "stage 2")
        begun_frozen.train(steps=[0])
        for net in (begun_frozen.net, begun_frozen.alone):
            net[0].requires_grad_(True)
        found.append(begun_frozen.train(steps=[1, 2]).apart())
        return found

    assert launch(run, 2) == [[""] * 3] * 2


def frozen_head(net: nn.Module) -> nn.Module:
    net[0].requires_grad_(False)
    return net


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


def test_a_group_may_be_added_and_parameters_may_have_names() -> None:
    def run() -> list[str]:
        found = []
        for mode in MODES:
            names = lambda net: list(net[2].named_parameters())  # noqa: E731
            twins = Twins(odd, mode, groups=names)
            for parameter in twins.net.parameters():  # of which the first group holds a few
                dist.broadcast(parameter.data, 0)
            twins.train(steps=[0])
            for net, optimizer in ((twins.net, twins.zero), (twins.alone, twins.bare)):
                rest = [*net[0].named_parameters(), *net[4].named_parameters()]
                optimizer.add_param_group({"params": rest, "lr": 0.002})
            twins.train(steps=[1, 2])
            found.append(twins.apart())
            assert all(holder_of(p) is twins.zero for p in twins.net.parameters())
        return found

    assert launch(run, 2) == [[""] * 3] * 2


def test_gradients_that_were_stepped_on_are_not_added_to() -> None:
    """Whoever zeroes them: the optimizer, the module, or nobody. A second step does nothing."""

    def run() -> list[str]:
        found = []
        for mode in LOCAL:
            for zeroes in ("module", "nobody"):
                twins = Twins(odd, mode)
                for step in range(3):
                    twins.backward(squares, step)
                    twins.zero.step()
                    twins.bare.step()
                    twins.bare.zero_grad()
                    if zeroes == "module":
                        twins.net.zero_grad()
                twins.zero.step()
                found.append(twins.apart())
            discarded = Twins(odd, mode)
            discarded.backward(squares, 0)
            for optimizer in (discarded.zero, discarded.bare):
                optimizer.zero_grad()
            found.append(discarded.train(steps=[1]).apart())
        return found

    assert launch(run, 2) == [[""] * 6] * 2


def test_autograd_sees_that_parameters_were_written() -> None:
    def run() -> None:
        net = odd()
        zero = ZeroOptimizer(net.parameters(), SGD, stage=2, lr=0.1)
        squares(net, 0, 0).backward()
        stale = squares(net, 0, 1)
        zero.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            stale.backward()

    launch(run, 1)


# ---- what is kept, and when it is freed ----


def test_stage_2_holds_the_gradients_of_two_parts_at_most_in_backward() -> None:
    """And no parameter's whole gradient once it has been packed."""

    def run() -> tuple[list[int], list[int], int]:
        net = mlp(8, 8, 8, 8, 8, 8, 8)
        zero = ZeroOptimizer(net.parameters(), SGD, stage=2, lr=0.1, bucket_cap_mb=1e-6)
        whole, packed = [], []

        def look(_: Any) -> None:
            whole.append(sum(p.grad is not None for p in net.parameters()))
            packed.append(sum(part.flat_grad is not None for part in zero.buckets))

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(look)
        squares(net, dist.get_rank(), 0).backward()
        assert all(p.grad is None for p in net.parameters())
        assert all(part.flat_grad is None and part.grad_shard is not None for part in zero.buckets)
        return whole, packed, len(zero.buckets)

    for whole, packed, parts in launch(run, 2):
        assert parts == 12
        assert whole == [0] * 12
        assert max(packed) <= 2


def test_parts_leave_in_the_order_of_backward_whatever_the_groups() -> None:
    """With decay and without: the vectors of all layers come last, and hold nobody up."""

    def run() -> list[list[str]]:
        net = mlp(4, 4, 4, 4)
        zero = ZeroOptimizer(by_decay(net), SGD, stage=2, lr=0.1, bucket_cap_mb=1.2e-4)
        seen: list[list[str]] = []
        send = Slices.reduce_scatter

        def spy(slices: Slices, bucket: ShardedBucket) -> None:
            seen.append([f"{tuple(parameter.shape)}" for parameter in bucket.parameters])
            send(slices, bucket)

        Slices.reduce_scatter = spy  # type: ignore[method-assign]
        squares(net, 0, 0).backward()
        zero.step()
        return seen

    matrix, vectors = ["(4, 4)"], ["(4,)"] * 3
    assert launch(run, 2) == [[matrix, matrix, matrix, vectors]] * 2


# ---- what is sent, and when ----


def test_stage_2_sends_while_backward_still_makes_gradients_and_all_gathers_are_under_way() -> None:
    def run() -> tuple[list[str], list[str]]:
        events: list[str] = []

        net = mlp(4, 4, 4)
        zero = ZeroOptimizer(
            net.parameters(), SGD, stage=2, lr=0.1, bucket_cap_mb=1e-6, comm=Spy(events)
        )
        for name, parameter in net.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(made, events, name))
        squares(net, dist.get_rank(), 0).backward()
        half = list(events)
        events.clear()
        zero.step()
        return half, list(events)

    for backward, step in launch(run, 2):
        assert backward.count("reduce") == 4
        assert backward.index("reduce") < backward.index("0.weight")
        assert step == ["gather"] * 4 + ["wait"] * 4


def made(events: list[str], name: str, *_: Any) -> None:
    events.append(name)


class Spy(Ours):
    """Tells what it is asked for."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def reduce_scatter(self, *args: Any, **options: Any) -> Handle | None:
        self._events.append("reduce")
        return super().reduce_scatter(*args, **options)

    def all_gather(self, *args: Any, **options: Any) -> Handle | None:
        assert options.pop("async_op") is True
        self._events.append("gather")
        return Waited(super().all_gather(*args, async_op=True), self._events)


class Waited:
    """A handle that tells when it is waited for."""

    def __init__(self, handle: Any, events: list[str]) -> None:
        self._handle, self._events = handle, events

    def wait(self) -> object:
        self._events.append("wait")
        return self._handle.wait()

    @property
    def span(self) -> Any:
        return self._handle.span


def test_the_timeline_names_what_runs() -> None:
    def run() -> set[str]:
        net = mlp(4, 4)
        zero = ZeroOptimizer(net.parameters(), SGD, stage=2, lr=0.1)
        with timeline() as line:
            squares(net, 0, 0).backward()
            zero.step()
        return {f"{span.lane} {span.name}" for span in line.spans}

    assert launch(run, 2)[1] == {
        "compute backward",
        "communication reduce-scatter 0",
        "compute optimizer",
        "communication all-gather 0",
    }
