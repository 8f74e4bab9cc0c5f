"""What modules and training loops do under DDP; `tests/proof` trains it beside one process."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist import DistributedDataParallel, launch
from tests.support.training import compare, mlp, numbers, quiet

SMALL = {"bucket_cap_mb": 200e-6, "first_bucket_mb": 50e-6}  # several buckets of few parameters
Case = Callable[[], str]


def cases_fail(cases: dict[str, Case], ranks: int) -> dict[str, str]:
    """All in one launch; what is wrong, by case and rank."""

    def run() -> dict[str, str]:
        return {name: wrong for name, case in cases.items() if (wrong := case())}

    found = launch(run, ranks)
    return {f"{name}, rank {r}": why for r, each in enumerate(found) for name, why in each.items()}


# Modes and options


def once(model: Any, rank: int, step: int) -> None:
    model(numbers(rank, step, 3, 6)).square().mean().backward()


def test_in_a_sub_group() -> None:
    def in_pairs() -> bool:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = pairs[dist.get_rank() // 2]
        torch.manual_seed(0)
        ddp = DistributedDataParallel(mlp(6, 5), process_group=mine)
        total = torch.zeros(6 * 5, dtype=torch.float64)
        once(ddp, dist.get_rank(), 0)
        for rank in dist.get_process_group_ranks(mine):
            alone = mlp(6, 5)
            alone.load_state_dict(ddp.state_dict())
            once(alone, rank, 0)
            total += alone[0].weight.grad.view(-1) / 2  # type: ignore[operator, index, union-attr]
        return torch.allclose(ddp.module[0].weight.grad.view(-1), total)  # type: ignore[operator, index, union-attr]

    assert launch(in_pairs, 4) == [True] * 4


# What modules do


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = mlp(6, 4), nn.Linear(4, 6, bias=False, dtype=torch.float64)
        self.again = nn.Linear(4, 6, bias=False, dtype=torch.float64)
        self.again.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.down(self.up(self.down(x))))


def frozen() -> nn.Module:
    net = mlp(6, 5, 4)
    net[0].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    return net


def images(model: Any, rank: int, step: int) -> None:
    x = numbers(rank, step, 2, 3, 5, 5).to(memory_format=torch.channels_last)
    model(x).square().mean().backward()


def convnet() -> nn.Module:
    conv = nn.Conv2d(3, 4, 3, dtype=torch.float64)
    net = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(4, 2, 2, dtype=torch.float64))
    return net.to(memory_format=torch.channels_last)


class Dtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp(6, 5), mlp(5, 2)
        self.middle = nn.Linear(5, 5)
        self.narrow = nn.Linear(5, 5, dtype=torch.bfloat16)
        self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.middle(self.first(x).float())
        x = self.narrow(x.bfloat16()).float()
        return self.last((x * self.turn).abs().double())


def under_autocast(model: Any, rank: int, step: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(numbers(rank, step, 3, 6, dtype=torch.float32)).float().square().mean()
    loss.backward()


def two_forwards(model: Any, rank: int, step: int) -> None:
    first, second = model(numbers(rank, step, 3, 6)), model(numbers(rank, step + 50, 3, 6))
    (first * second).mean().backward()


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([mlp(6, 4), mlp(6, 3)])

    def forward(self, x: torch.Tensor, part: int) -> torch.Tensor:
        return self.parts[part](x)


def halves_quiet(model: Any, rank: int, step: int) -> None:
    """One loss of two forwards, of different parts: one's gradients come before the other's."""
    first = model(numbers(rank, step, 3, 6), 0)
    with quiet(model):
        second = model(numbers(rank, step + 50, 3, 6), 1)
    (first.square().mean() + second.square().mean()).backward()


def normed() -> nn.Module:
    return nn.Sequential(mlp(6, 5), nn.BatchNorm1d(5, dtype=torch.float64), mlp(5, 2))


MODULES: dict[str, tuple[Callable[[], nn.Module], Any, dict[str, Any]]] = {
    "tied and used twice": (Tied, once, {}),
    "frozen": (frozen, once, {}),
    "channels_last": (convnet, images, {}),
    "dtypes": (Dtypes, once, {"tolerance": 2e-2}),
    "autocast": (partial(lambda: mlp(6, 5, 4).float()), under_autocast, {"tolerance": 1e-6}),
    "two forwards through BatchNorm": (normed, two_forwards, {}),
    "one of two halves in no_sync": (Halves, halves_quiet, {}),
}


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_kind_of_module_and_of_backward(ranks: int) -> None:
    cases: dict[str, Case] = {}
    for (name, (build, train, extra)), view in product(MODULES.items(), (False, True)):
        options = {"gradient_as_bucket_view": view, **SMALL, **extra}
        cases[f"{name}, view {view}"] = partial(compare, build, train, **options)
    assert cases_fail(cases, ranks) == {}


def test_views_lie_in_the_buckets_also_in_no_sync_and_after_the_rebuild() -> None:
    def inside(ddp: DistributedDataParallel) -> bool:
        return all(
            p.grad is not None and p.grad.data_ptr() == bucket.views[p].data_ptr()
            for bucket in ddp.buckets
            for p in bucket.parameters
        )

    def run() -> list[bool]:
        found = []
        for view in (True, False):
            ddp = DistributedDataParallel(mlp(6, 5, 4), gradient_as_bucket_view=view, **SMALL)
            for step in range(3):
                ddp.zero_grad(set_to_none=step == 1)
                with ddp.no_sync():
                    once(ddp, dist.get_rank(), step + 100)
                found.append(inside(ddp))
                once(ddp, dist.get_rank(), step)
                found.append(inside(ddp))
        return found

    assert launch(run, 2) == [[True] * 6 + [False] * 6] * 2


def test_what_the_wrapper_tells_of_itself() -> None:
    def run() -> list[Any]:
        ddp = DistributedDataParallel(mlp(6, 5, 4), **SMALL)
        told: list[Any] = [ddp.steps, ddp.arrivals]
        for step in range(2):
            with ddp.no_sync():
                once(ddp, dist.get_rank(), step + 100)
            once(ddp, dist.get_rank(), step)
        told += [ddp.steps, ddp.arrivals, repr(ddp.buckets[0])]
        return told

    for first, none, steps, arrivals, bucket in launch(run, 2):
        assert (first, none, steps) == (0, [], 2)
        assert sorted(arrivals) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert {name.split(".")[0] for name in arrivals[:2]} == {"2"}, "the last layer's come first"
        assert bucket.startswith(f"Bucket(0: {arrivals[0]}")


def test_without_checks_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    cases: dict[str, Case] = {
        "once": partial(compare, partial(mlp, 6, 5, 4), once, **SMALL),
        "buffers": partial(compare, normed, two_forwards, sync="bucketed"),
    }
    assert cases_fail(cases, 3) == {}
