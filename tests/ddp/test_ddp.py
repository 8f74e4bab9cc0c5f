"""What modules and training loops do under DDP; `tests/proof` trains it beside one process."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist import DistributedDataParallel, launch
from tests.support.training import compare, mlp, numbers, quiet

SMALL = {"bucket_cap_mb": 200e-6, "first_bucket_mb": 50e-6}  # several buckets of few parameters


def once(model: Any, rank: int, step: int) -> None:
    model(numbers(rank, step, 3, 6)).square().mean().backward()


# What modules do


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


MODULES: dict[str, tuple[Callable[[], nn.Module], Any, dict[str, Any]]] = {
    "channels_last": (convnet, images, {}),
    "dtypes": (Dtypes, once, {"tolerance": 2e-2}),
    "one of two halves in no_sync": (Halves, halves_quiet, {}),
}


@pytest.mark.parametrize("check", ["1", "0"])
def test_every_kind_of_module_and_of_backward(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without checks between the ranks; `tests/proof/attacks` has more of them."""
    monkeypatch.setenv("MINIDIST_CHECK", check)

    def run() -> dict[tuple[str, bool], str]:
        return {
            (name, view): compare(build, train, gradient_as_bucket_view=view, **SMALL, **extra)
            for (name, (build, train, extra)), view in product(MODULES.items(), (False, True))
        }

    for found in launch(run, 3):
        assert set(found.values()) == {""}, found


def test_views_lie_in_the_buckets_also_in_no_sync_and_after_the_rebuild() -> None:
    def inside(ddp: DistributedDataParallel) -> bool:
        return all(
            p.grad is not None and p.grad.data_ptr() == bucket.views[p].data_ptr()
            for bucket in ddp.buckets
            for p in bucket.parameters()
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
    def run() -> None:
        ddp = DistributedDataParallel(mlp(6, 5, 4), **SMALL)
        assert (ddp.steps, ddp.arrivals) == (0, [])
        for step in range(2):
            with ddp.no_sync():
                once(ddp, dist.get_rank(), step + 100)
            once(ddp, dist.get_rank(), step)
        assert ddp.steps == 2
        assert sorted(ddp.arrivals) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert {name[0] for name in ddp.arrivals[:2]} == {"2"}, "the last layer's come first"

    launch(run, 2)
