"""The lesson's experts train as in one process that has them all; or they refuse in a sentence."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim import SGD

from from_scratch.expert import Experts, balance
from minidist import Ours, launch

EXPERTS, WIDE, RATE = 12, 4, 0.1  # 1 to 4 ranks divide the experts
DOUBLE, FLOAT, HALF = torch.float64, torch.float32, torch.bfloat16


class Detached(nn.Linear):
    """Trains without handing a gradient on."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


class Case(NamedTuple):
    """What a layer is made of and given.

    Attributes:
        tokens: of ranks 0 to 3.
        frozen: which experts are.
        detached: which experts hand no gradient on.
        popular: an expert that all tokens go to; others of its rank, and other ranks, get none.
        needs: whether tokens need a gradient.
        level: how much the balance weighs.
    """

    tokens: Sequence[int] = (5, 3, 6, 4)
    top_k: int = 2
    capacity: int | None = None
    frozen: Sequence[int] = ()
    popular: int = -1
    needs: bool = True
    level: float = 0.1
    dtype: torch.dtype = DOUBLE
    auto: bool = False
    detached: Sequence[int] = ()
    wider: int = 0
    twice: bool = False
    router: bool = True


CASES = {
    "some tokens": Case(),
    **{f"top-{k}": Case(top_k=k) for k in (1, 3, EXPERTS - 1, EXPERTS)},
    **{f"capacity {n}": Case(capacity=n) for n in (1, 2, 99)},
    "a rank without tokens": Case((0, 3, 0, 1)),
    "no tokens": Case((0, 0, 0, 0)),
    "one token": Case((0, 0, 1, 0)),
    "one popular expert": Case(popular=0, top_k=1),
    "the last is popular": Case(popular=EXPERTS - 1, top_k=1, capacity=2),
    "input": Case(needs=False),
    "one rank's are frozen": Case(frozen=range(EXPERTS // 2), needs=False),
    "all are frozen": Case(frozen=range(EXPERTS), needs=False),
    "the router is frozen": Case(router=False, needs=False),
    "one detaches": Case(detached=[0]),
    "one rank's detach": Case(detached=range(EXPERTS // 2)),
    "without balance": Case(level=0),
    "wider outputs": Case(wider=3),
    "an expert twice": Case(twice=True),
    "bfloat16": Case(dtype=HALF),
    "autocast": Case(dtype=FLOAT, auto=True),
}


def mixture(case: Case, rank: int = 0) -> tuple[nn.Linear, nn.ModuleList]:
    """The router is rank 0's; of the experts, those of other ranks do not count."""
    torch.manual_seed(rank)
    router = nn.Linear(WIDE, EXPERTS)
    torch.manual_seed(7)
    out = WIDE + case.wider
    experts = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDE, 5), nn.Tanh(), nn.Linear(5, out)) for _ in range(EXPERTS)
    )
    for number in case.detached:
        experts[number] = Detached(WIDE, out)
    if case.twice:
        experts[1] = experts[0]
    for number in case.frozen:
        experts[number].requires_grad_(False)
    if case.popular >= 0:
        router.bias.data[case.popular] = 50.0
    router.requires_grad_(case.router)
    return router.to(case.dtype), experts.to(case.dtype)


def dense(router: nn.Module, experts: Any, x: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    """Token by token."""
    probability, taken = router(x).softmax(-1), [0] * EXPERTS
    gates, choices = probability.topk(case.top_k)
    rows = []
    for token, gate, chosen in zip(x, gates, choices.tolist(), strict=True):
        row: Any = torch.zeros(WIDE + case.wider, dtype=gate.dtype)
        for place, number in enumerate(chosen):
            taken[number] += 1
            if case.capacity is None or taken[number] <= case.capacity:
                row = row + gate[place] * experts[number](token)
        rows.append(row)
    out = torch.stack(rows) if rows else probability.new_zeros(0, WIDE + case.wider)
    level = balance(probability, one_hot(choices.flatten(), EXPERTS)) if rows else torch.zeros(())
    return out, level


def loss_of(out: Tensor, level: Tensor, case: Case) -> Tensor:
    return out.double().square().sum() + case.level * level


def off(case: Case) -> str:
    """What is not as in one process, on this rank, which goes on: others may wait for it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    router, experts = mixture(case, rank)
    layer = Experts(router, experts, Ours(), case.top_k, case.capacity)
    alone, every = mixture(case)
    routers = [deepcopy(alone) for _ in range(ranks)]
    every_weight = list({*every.parameters(), *(p for each in routers for p in each.parameters())})
    optimizers = SGD(layer.parameters(), RATE), SGD(every_weight, RATE)
    first, tolerance = "", 1e-9 if case.dtype == DOUBLE else 3e-2
    for step, action in enumerate("BSBEBS" if case.dtype == DOUBLE else "BEB"):
        draw = torch.Generator().manual_seed(step)
        xs = [torch.randn(n, WIDE, generator=draw).to(case.dtype) for n in case.tokens[:ranks]]
        if action == "S":
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            continue
        given, own = xs, xs[rank].clone()
        for each in (*given, own):
            each.requires_grad_(case.needs)
        with torch.set_grad_enabled(action == "B"):
            with torch.autocast("cpu", HALF, enabled=case.auto):
                mine = layer(own.to(HALF) if case.auto else own)
                right = [dense(r, every, x, case) for r, x in zip(routers, given, strict=True)]
            pairs = [("output", mine, right[rank][0]), ("balance", layer.balance, right[rank][1])]
            if action == "B":
                loss_of(mine, layer.balance, case).backward()
                total = sum(loss_of(*each, case) for each in right)
                if isinstance(total, Tensor) and total.requires_grad:
                    total.backward()
                if case.needs:
                    pairs.append(("gradient of tokens", own.grad, given[rank].grad))
        ours = [router, *layer.experts]
        each_rank = EXPERTS // ranks
        theirs = [routers[rank], *every[rank * each_rank : (rank + 1) * each_rank]]
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            for weight, same in zip(one.parameters(), other.parameters(), strict=True):
                pairs.append((f"weight {number}", weight, same))
                pairs.append((f"gradient {number}", weight.grad, same.grad))
        for what, found, wanted in pairs:
            found, wanted = (torch.zeros(()) if t is None else t for t in (found, wanted))
            if not torch.allclose(found.double(), wanted.double(), tolerance, tolerance):
                first = first or f"{what} in step {step}: {found}, not {wanted}"
    return first


def all_off() -> dict[str, str]:
    torch.set_num_threads(1)
    return {name: text for name, case in CASES.items() if (text := off(case))}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_experts_are_those_of_one_process(ranks: int) -> None:
    assert launch(all_off, ranks, timeout=200) == [{}] * ranks
