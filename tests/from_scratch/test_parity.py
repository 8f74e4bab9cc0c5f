"""from_scratch trains as one process on the whole batch does, and sends what the chapter says."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from from_scratch import ddp, fsdp, ring, zero, zero3
from minidist import Counted, Ours, launch
from tests.support.models import gpt, score, tokens
from tests.support.training import far, mlp, numbers

STEPS, ROWS = 3, 12  # rows: of 1, 2, 3 or 4 ranks


def mlp_loss(net: Any, step: int, rows: slice) -> torch.Tensor:
    return net(numbers(0, step, ROWS, 5)[rows]).square().mean()


def gpt_loss(net: Any, step: int, rows: slice) -> torch.Tensor:
    return score(net, tokens(step, ROWS)[rows])


def nested() -> nn.Module:
    return nn.Sequential(mlp(5, 3), nn.Sequential(mlp(3, 7), mlp(7, 4)), nn.Linear(4, 1).double())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.Tensor]]] = {
    "mlp": (lambda: mlp(5, 7, 3, 1), mlp_loss),
    "gpt": (gpt, gpt_loss),
    "nested": (nested, mlp_loss),
}
CAP = 1e-3


def groups(net: nn.Module) -> list[dict[str, Any]]:
    parameters = list(net.parameters())
    return [{"params": parameters[:2], "lr": 0.03}, {"params": parameters[2:], "weight_decay": 0.1}]


def blocks(net: nn.Module) -> list[nn.Module]:
    return [
        each
        for each in net.modules()
        if isinstance(each, nn.Sequential) or "Block" in type(each).__name__
    ]


def with_adam(model: Any, parameters: Any) -> tuple[Any, Callable[[], None], Any]:
    return (
        model,
        getattr(model, "synchronize", lambda: None),
        torch.optim.AdamW(parameters, lr=0.01),
    )


def wrap(kind: str, net: nn.Module, comm: Any) -> tuple[Any, Callable[[], None], Any]:
    if kind.startswith("zero"):
        options = {} if kind == "zero1" else {"bucket_cap_mb": CAP}
        opt = {"zero1": zero.ZeRO1, "zero2": zero.ZeRO2}[kind](
            groups(net), torch.optim.AdamW, comm, lr=0.01, **options
        )
        return net, lambda: None, opt
    wrapped: Any
    if kind == "three":
        wrapped = zero3.ZeRO3(net, comm)
        return with_adam(wrapped, wrapped.parameters())
    if kind.startswith("fsdp"):
        wrapped = fsdp.FSDP(net, blocks(net), comm, prefetch="prefetch" in kind)
        return with_adam(wrapped, wrapped.shards)
    wrapped = getattr(ddp, kind)(
        net, comm, *([CAP] if kind in ("BucketedDDP", "OverlappedDDP") else [])
    )
    return with_adam(wrapped, net.parameters())


KINDS = [
    "PerParameterDDP",
    "FlatDDP",
    "BucketedDDP",
    "OverlappedDDP",
    "zero1",
    "zero2",
    "three",
    "fsdp",
    "fsdp prefetch",
]


def parity() -> dict[str, str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, (build, loss) in MODELS.items():
        for kind in KINDS:
            torch.manual_seed(3)
            net = build()
            alone = copy.deepcopy(net)
            if rank:
                with torch.no_grad():
                    for p in net.parameters():
                        p.add_(1)
            comm = Counted(Ours(algorithm="ring"))
            model, synchronize, optimizer = wrap(kind, net, comm)
            bare = torch.optim.AdamW(
                groups(alone) if "zero" in kind else alone.parameters(), lr=0.01
            )
            part = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
            losses = []
            for step in range(STEPS):
                value = loss(model, step, part)
                value.backward()
                synchronize()
                optimizer.step()
                optimizer.zero_grad()
                right = loss(alone, step, slice(None))
                right.backward()
                bare.step()
                bare.zero_grad()
                dist.all_reduce(value.detach())
                losses.append(abs(float(value.detach()) / ranks - float(right.detach())))
            if kind == "three":
                whole = zero3.Gather.apply(model.shard, comm).detach()
                n = 0
                got = {}
                for k, s in model.shapes.items():
                    got[k] = whole[n : n + s.numel()].view(s)
                    n += s.numel()
            else:
                if "fsdp" in kind:
                    for unit in model.units:
                        unit.unshard()
                got = {k: p.detach() for k, p in net.named_parameters()}
            want = {k: p.detach() for k, p in alone.named_parameters()}
            found[f"{name} {kind}"] = far(got, want, 1e-9) or (
                "" if max(losses) < 1e-9 else f"losses {losses}"
            )
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parity(ranks: int) -> None:
    for found in launch(parity, ranks):
        assert not {k: v for k, v in found.items() if v}


def rings() -> bool:
    r, n = dist.get_rank(), dist.get_world_size()
    for size in (0, 1, n - 1, n, n + 1, 17):
        x = numbers(r, 0, size)
        want = sum(numbers(i, 0, size) for i in range(n))
        ring.all_reduce(x)
        assert torch.allclose(x, want)
    x = numbers(r, 1, 3 * n)
    out = torch.empty(3).double()
    ring.reduce_scatter(out, x)
    assert torch.allclose(out, sum(numbers(i, 1, 3 * n) for i in range(n))[3 * r : 3 * r + 3])
    full = torch.empty(3 * n).double()
    ring.all_gather(full, out)
    assert torch.allclose(full, sum(numbers(i, 1, 3 * n) for i in range(n)))
    return True


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ring(ranks: int) -> None:
    assert all(launch(rings, ranks))
