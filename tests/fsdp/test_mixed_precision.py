"""fully_shard in several dtypes: what is used, what is sent, what is kept."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist import Counted, Ours, full_gradients, fully_shard, launch
from minidist.parallel.fsdp.fully_shard import units
from minidist.parallel.fsdp.param_group import MixedPrecisionPolicy
from tests.support.training import bytes_of_flags, far, wholes

BF16, F32 = torch.bfloat16, torch.float32


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(2)]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def shard(model: nn.Sequential, **options: Any) -> Any:
    for layer in model[:2]:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def data(step: int) -> torch.Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))


def by_hand(
    bare: nn.Module, parts: list[list[torch.Tensor]], reduce: torch.dtype
) -> dict[str, torch.Tensor]:
    """Of each rank's micro-batches: gradients in bf16, added and averaged in `reduce`."""
    total: dict[str, torch.Tensor] = {}
    for micro in parts:
        mine: dict[str, torch.Tensor] = {}
        for x in micro:
            low = copy.deepcopy(bare).to(BF16)
            low(x.to(BF16)).float().square().mean().backward()
            for name, p in low.named_parameters():
                assert p.grad is not None
                mine[name] = mine.get(name, 0) + p.grad.to(reduce)
        for name, gradient in mine.items():
            share = gradient * (1 / len(parts))
            total[name] = total[name] + share if name in total else share
    return {name: gradient.float() for name, gradient in total.items()}


@pytest.mark.claim("E11")
def test_low_precision_is_used_and_sent_and_full_precision_is_kept() -> None:
    """2 ranks, so that the order of adding does not matter: equal in every bit."""

    def run(reduce: torch.dtype | None, backwards: int) -> None:
        comm, used = Counted(Ours(algorithm="ring")), []
        model = shard(net(), comm=comm, mp_policy=MixedPrecisionPolicy(BF16, reduce))
        model[1][0].register_forward_hook(
            lambda module, _, out: used.append((module.weight.dtype, out.dtype))
        )
        comm.clear()
        parts = [[data(10 * rank + micro) for micro in range(backwards)] for rank in range(2)]
        for micro, x in enumerate(parts[dist.get_rank()]):
            model.set_requires_gradient_sync(micro == backwards - 1)
            model(x).float().square().mean().backward()
        assert used == [(BF16, BF16)] * backwards
        numel = sum(group.layout.padded for unit in units(model) for group in unit.groups)
        sent = comm.bytes_sent - bytes_of_flags(comm, len(list(model.parameters())))
        assert sent == numel * (2 * 2 * backwards + (4 if reduce is F32 else 2)) // 2
        assert {each.dtype for p in model.parameters() for each in (p, p.grad)} == {F32}
        assert far(full_gradients(model), by_hand(net(), parts, reduce or BF16), 0) == ""

    launch(lambda: [run(*each) for each in ((F32, 1), (F32, 3), (BF16, 1), (None, 1))], 2)


class Table(nn.Module):
    """Looks up frozen integers; notes the dtypes that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.index = nn.Parameter(torch.arange(3), requires_grad=False)
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Any, *, more: Any) -> Any:
        self.seen = [x["a"].dtype, x["b"].dtype, more.dtype, self.weight.dtype]
        return {"out": x["a"][self.index] * self.weight, "ids": x["b"]}


def test_outputs_and_inputs_are_cast_as_told_and_integers_never() -> None:
    def run() -> list[Any]:
        found: list[Any] = []
        for cast, output in ((True, F32), (False, None), (True, None)):
            policy = MixedPrecisionPolicy(
                param_dtype=BF16, output_dtype=output, cast_forward_inputs=cast
            )
            model = fully_shard(Table(), mp_policy=policy)
            out = model({"a": torch.ones(3), "b": torch.arange(3)}, more=torch.ones(1))
            out["out"].sum().backward()
            found.append((model.seen, out["out"].dtype, out["ids"].dtype))
        found.append([str(group.param_dtype) for group in units(model)[0].groups])
        return [*found, torch.equal(wholes(model)["index"], torch.arange(3))]

    ids = torch.int64
    want = [
        ([BF16, ids, BF16, BF16], F32, ids),
        ([F32, ids, F32, BF16], F32, ids),
        ([BF16, ids, BF16, BF16], BF16, ids),
        ["torch.int64", "torch.bfloat16"],
        True,
    ]
    assert launch(run, 2) == [want] * 2
