"""Parameters that a backward leaves out, and ranks that count for more or less than others."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from minidist import Counted, DistributedDataParallel, Ours, launch
from tests.support.training import compare, mlp, numbers

MODES = ("naive", "flat", "bucketed", "overlapped")
SMALL = {"bucket_cap_mb": 200e-6, "first_bucket_mb": 50e-6}


class Experts(nn.Module):
    """Every part is used only if it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp(4, 4)
        self.parts = nn.ModuleList([mlp(4, 3) for _ in range(3)])

    def forward(self, x: torch.Tensor, which: list[int]) -> torch.Tensor:
        x = self.trunk(x)
        return sum((self.parts[i](x) for i in which), x.sum(1, keepdim=True))


def routed(model: Any, rank: int, step: int) -> None:
    """Rank r uses part r; in step 1 nobody uses any; in step 2 all use part 0."""
    which = {1: [], 2: [0]}.get(step, [rank % 2])
    model(numbers(rank, step, 3, 4), which).square().mean().backward()


def keeping(model: Any, rank: int, step: int) -> None:
    """Gradients add up over steps: what no rank uses must stay as it is."""
    routed(model, rank, step)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_different_ranks_may_leave_out_different_parameters(ranks: int) -> None:
    def run() -> dict[str, str]:
        found = {}
        for sync in MODES:
            for view in (False, True):
                for to_none in (True, False):
                    options = {"sync": sync, "gradient_as_bucket_view": view, **SMALL}
                    options["find_unused_parameters"] = True
                    wrong = compare(Experts, routed, 5, to_none=to_none, **options)
                    if wrong:
                        found[f"{sync}, view {view}, to_none {to_none}"] = wrong
        return found

    assert launch(run, ranks) == [{}] * ranks


def test_what_no_rank_used_keeps_its_bits() -> None:
    def run(view: bool) -> bool:
        torch.manual_seed(0)
        ddp = DistributedDataParallel(
            Experts(), find_unused_parameters=True, gradient_as_bucket_view=view
        )
        rank = dist.get_rank()
        for step in range(2):  # the second builds the buckets anew
            ddp(numbers(rank, step, 3, 4), [0, 1]).mean().backward()
        first, last = (ddp.module.parts[i][0].weight for i in (0, 2))  # type: ignore[index]
        before = first.grad.clone()
        ddp.weigh(1 + rank / 3)  # a mean of equal gradients would be off by rounding
        ddp(numbers(rank, 2, 3, 4), [1]).mean().backward()
        return torch.equal(first.grad, before) and last.grad is None

    assert launch(lambda: [run(False), run(True)], 3) == [[True, True]] * 3


def test_used_in_no_sync_counts_as_used() -> None:
    def train(model: Any, rank: int, step: int) -> None:
        if hasattr(model, "no_sync"):
            with model.no_sync():
                model(numbers(rank, step + 9, 3, 4), [rank % 2]).mean().backward()
        else:
            model(numbers(rank, step + 9, 3, 4), [rank % 2]).mean().backward()
        model(numbers(rank, step, 3, 4), []).mean().backward()

    def run() -> list[str]:
        return [
            compare(Experts, train, find_unused_parameters=True, gradient_as_bucket_view=view)
            for view in (False, True)
        ]

    assert launch(run, 2) == [["", ""]] * 2


def test_without_the_flag_that_very_backward_names_them() -> None:
    def run() -> tuple[str, str]:
        ddp = DistributedDataParallel(Experts())
        x = numbers(dist.get_rank(), 0, 3, 4)
        with pytest.raises(RuntimeError) as of_backward:
            ddp(x, [0, 2]).mean().backward()
        with pytest.raises(RuntimeError) as of_next:
            ddp(x, [0, 1, 2])
        return str(of_backward.value), str(of_next.value)

    for rank, (of_backward, of_next) in enumerate(launch(run, 2)):
        assert of_backward.startswith(f"rank {rank}: DistributedDataParallel: expected backward")
        assert "none for parts.1.0.weight, parts.1.0.bias. " in of_backward
        assert "find_unused_parameters=True" in of_backward
        assert f"rank {rank}: DistributedDataParallel is out of step" in of_next


def test_unused_parameters_are_in_the_last_bucket_after_the_rebuild() -> None:
    def run() -> tuple[list[str], list[tuple[str, ...]]]:
        options = {"bucket_cap_mb": 1e-6, "first_bucket_mb": 1e-6}
        comm = Counted(Ours())
        ddp = DistributedDataParallel(Experts(), find_unused_parameters=True, comm=comm, **options)
        for _ in range(2):
            comm.clear()
            ddp(numbers(dist.get_rank(), 0, 3, 4), [1]).mean().backward()
        return [call.name for call in comm.calls], [bucket.names for bucket in ddp.buckets]

    for calls, names in launch(run, 2):
        unused = [f"parts.{i}.0.{kind}" for i in (0, 2) for kind in ("bias", "weight")]
        assert sorted(name for (name,) in names[-4:]) == sorted(unused)
        assert calls == ["broadcast", *["all_reduce"] * 8, "all_reduce"], "the last: who used what"


# Weights


def weighed(**options: Any) -> str:
    """Shards of 1, 2 and 3 samples, and in step 1 one of none, against the mean over samples."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net, whole = mlp(4, 3), mlp(4, 3)
    ddp = DistributedDataParallel(net, **options)
    whole.load_state_dict(ddp.state_dict())
    for step in range(3):
        sizes = [0 if (r, step) == (1, 1) else r + 1 for r in range(ranks)]
        shards = [numbers(r, step, size, 4) for r, size in enumerate(sizes)]
        ddp.zero_grad()
        whole.zero_grad()
        ddp.weigh(sizes[rank])
        mine = shards[rank] if sizes[rank] else shards[0] * math.nan  # it counts for 0
        ddp(mine).square().mean().backward()
        whole(torch.cat(shards)).square().mean().backward()
        for mine, right in zip(net.parameters(), whole.parameters(), strict=True):
            if mine.grad is None or not torch.allclose(mine.grad, right.grad, 1e-12, 1e-12):
                return f"step {step}: {mine.grad} instead of {right.grad}"
    ddp.zero_grad()
    whole.zero_grad()
    ddp(numbers(rank, 9, 2, 4)).mean().backward()  # weights count once
    whole(torch.cat([numbers(r, 9, 2, 4) for r in range(ranks)])).mean().backward()
    same = torch.allclose(net[0].weight.grad, whole[0].weight.grad, 1e-12, 1e-12)
    return "" if same else "the weight stayed"


def test_weights_give_the_mean_over_samples() -> None:
    def run() -> list[str]:
        ours = [weighed(sync=sync, gradient_as_bucket_view=sync == "flat") for sync in MODES]
        return [why for why in ours if why]

    for ranks in (2, 3):
        assert launch(run, ranks) == [[]] * ranks


def test_weights_reach_a_hook() -> None:
    def run() -> bool:
        rank = dist.get_rank()
        ddp = DistributedDataParallel(mlp(4, 3))
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        ddp.weigh(3 * rank)
        ddp(numbers(rank, 0, 2, 4)).mean().backward()
        right = mlp(4, 3)
        right.load_state_dict(ddp.state_dict())
        right(numbers(1, 0, 2, 4)).mean().backward()  # rank 0 counts for nothing
        got, want = ddp.module[0].weight.grad, right[0].weight.grad  # type: ignore[index]
        return torch.allclose(got, want, 1e-12, 1e-12)

    assert launch(run, 2) == [True, True]


@pytest.mark.parametrize("samples", [-1, math.nan, math.inf, "3", True, None])
def test_weights_must_be_numbers(samples: Any) -> None:
    def run() -> str:
        ddp = DistributedDataParallel(mlp(4, 3))
        with pytest.raises(ValueError, match="samples") as told:
            ddp.weigh(samples if dist.get_rank() else 3)
        return str(told.value)

    first, second = launch(run, 2)
    assert second == f"rank 1: weigh: samples: expected a number from 0 on, got {samples!r}"
    assert first.endswith(f"on rank 1: samples: expected a number from 0 on, got {samples!r}")


def test_weights_of_nothing_at_all() -> None:
    def run() -> str:
        with pytest.raises(ValueError, match="0 on all ranks") as told:
            DistributedDataParallel(mlp(4, 3)).weigh(0)
        return str(told.value)

    assert all("samples" in told for told in launch(run, 2))


def test_a_gradient_within_the_loss_is_no_step_also_where_unused_ones_are_found() -> None:
    def run() -> tuple[int, bool]:
        rank = dist.get_rank()
        ddp = DistributedDataParallel(mlp(4, 3), find_unused_parameters=True)
        ddp.weigh(3 * rank)  # rank 0 counts for nothing
        x = numbers(rank, 0, 2, 4).requires_grad_()
        out = ddp(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + slope.square().mean()).backward()
        right, x = mlp(4, 3), numbers(1, 0, 2, 4).requires_grad_()
        right.load_state_dict(ddp.state_dict())
        out = right(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + slope.square().mean()).backward()
        got, want = ddp.module[0].weight.grad, right[0].weight.grad  # type: ignore[index]
        return ddp.steps, torch.allclose(got, want, 1e-12, 1e-12)

    assert launch(run, 2) == [(1, True)] * 2


# PyTorch's own communication hooks


def torch_hook(name: str, view: bool, sync: str) -> str:
    """Ours against torch's with the same hook, on the same data."""
    hooks: dict[str, tuple[Any, Any]] = {
        "allreduce": (None, default_hooks.allreduce_hook),
        "fp16": (None, default_hooks.fp16_compress_hook),
        "fp16 wrapper": (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
        "powerSGD": (None, powerSGD_hook.powerSGD_hook),
    }
    models = []
    for wrap in (DistributedDataParallel, nn.parallel.DistributedDataParallel):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 6))
        more = {"sync": sync} if wrap is DistributedDataParallel else {}
        models.append(wrap(net, gradient_as_bucket_view=view, **more))
        state, hook = hooks[name]
        if name == "powerSGD":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.1
            )
        models[-1].register_comm_hook(state, hook)
    for step in range(5):
        for model in models:
            model.zero_grad()
            x = numbers(dist.get_rank(), step, 3, 12, dtype=torch.float32)
            model(x).square().mean().backward()
        for mine, right in zip(*(model.parameters() for model in models), strict=True):
            if not torch.allclose(mine.grad, right.grad, 1e-5, 1e-7):
                return f"{name}, step {step}: off by {(mine.grad - right.grad).abs().max():.2g}"
    return ""


def test_torchs_own_hooks_run_unchanged() -> None:
    def run() -> list[str]:
        names = ("allreduce", "fp16", "fp16 wrapper", "powerSGD")
        kinds = [(False, "overlapped"), (True, "overlapped"), (False, "bucketed")]
        return [w for name in names for view, sync in kinds if (w := torch_hook(name, view, sync))]

    assert launch(run, 2) == [[]] * 2


def test_hooks_that_cannot_be() -> None:
    def run() -> list[str]:
        found = []

        def told(error: type[Exception], hook: Any, backward: bool) -> None:
            ddp = DistributedDataParallel(mlp(4, 3))
            with pytest.raises(error) as raised:
                use(ddp, hook, backward)
            found.append(str(raised.value))

        def use(ddp: DistributedDataParallel, hook: Any, backward: bool) -> None:
            ddp.register_comm_hook(None, hook)
            if backward:
                ddp(numbers(dist.get_rank(), 0, 2, 4)).mean().backward()
            else:
                ddp.register_comm_hook(None, hook)

        def done(value: object) -> Any:
            future = torch.futures.Future()  # type: ignore[var-annotated]
            future.set_result(value)
            return future

        told(TypeError, "no function", False)
        told(ValueError, lambda state, bucket: done(bucket.buffer()), False)
        told(TypeError, lambda state, bucket: bucket.buffer(), True)
        told(TypeError, lambda state, bucket: done(3), True)
        told(ValueError, lambda state, bucket: done(bucket.buffer()[1:]), True)
        return found

    for rank, found in enumerate(launch(run, 2)):
        assert all(f"rank {rank}: " in told for told in found)
        no_function, second, no_wait, no_tensor, too_short = found
        assert "expected a function of state and bucket, got 'no function'" in no_function
        assert "there is one already" in second
        assert "expected something with wait(), such as a torch.futures.Future" in no_wait
        assert "expected wait() to return the reduced buffer, got a int" in no_tensor
        assert "expected 15 elements for bucket 0, got 14" in too_short
