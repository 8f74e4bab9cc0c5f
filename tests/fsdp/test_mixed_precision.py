"""fully_shard in several dtypes: what is used, what is sent, what is kept."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from minidist import Counted, Ours, fully_shard, launch
from minidist.parallel.fsdp.fully_shard import units
from minidist.parallel.fsdp.param_group import DtypePolicy
from tests.support.training import bytes_of_flags, far, gradients, mine, scaled_step, wholes

BF16, F32 = torch.bfloat16, torch.float32


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(2)]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def shard(model: nn.Sequential, **options: Any) -> Any:
    for layer in model[:2]:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def data(step: int, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(step))


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


def test_low_precision_is_used_and_sent_and_full_precision_is_kept() -> None:
    """2 ranks, so that the order of adding does not matter: equal in every bit."""

    def run() -> list[Any]:
        found: list[Any] = []
        for reduce in (F32, BF16, None):
            comm = Counted(Ours(algorithm="ring"))
            policy = DtypePolicy(param_dtype=BF16, reduce_dtype=reduce)
            model = shard(net(), comm=comm, mp_policy=policy)
            used: list[Any] = []
            model[1][0].register_forward_hook(
                lambda m, args, out, used=used: used.append((m.weight.dtype, out.dtype))
            )
            comm.clear()
            out = model(mine(data(0)))
            out.float().square().mean().backward()
            numel = sum(group.layout.padded for unit in units(model) for group in unit.groups)
            want = numel * (2 * 2 + (4 if reduce is F32 else 2)) // 2
            right = by_hand(net(), [[part] for part in data(0).chunk(2)], reduce or BF16)
            sent = comm.bytes_sent - bytes_of_flags(comm, len(list(model.parameters())))
            found.append((used, out.dtype, sent - want))
            found.append({each.dtype for p in model.parameters() for each in (p, p.grad)})
            found.append(far(gradients(model), right, 0))
        return found

    want = [([(BF16, BF16)], BF16, 0), {F32}, ""]
    assert launch(run, 2) == [want * 3] * 2


def test_gradients_add_up_in_the_reduce_dtype() -> None:
    def run() -> str:
        model = shard(net(), mp_policy=DtypePolicy(param_dtype=BF16, reduce_dtype=F32))
        parts = [[data(10 * rank + micro) for micro in range(3)] for rank in range(2)]
        for micro, x in enumerate(parts[dist.get_rank()]):
            model.set_requires_gradient_sync(micro == 2)
            model(x).float().square().mean().backward()
        return far(gradients(model), by_hand(net(), parts, F32), 0)

    assert launch(run, 2) == [""] * 2


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
            policy = DtypePolicy(param_dtype=BF16, output_dtype=output, cast_forward_inputs=cast)
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


def test_a_sharded_loss_scaler_lets_all_ranks_skip_a_step() -> None:
    """Of an infinite gradient the last rank sees a part in its shard, and rank 0 does not."""

    def skips(scaler: Any, model: nn.Module) -> list[tuple[float, bool]]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        seen = []
        for last in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            outputs = model(torch.ones(2, 4)) * torch.tensor([1.0, 1.0, last])
            scaler.scale(outputs.sum()).backward()
            seen.append(scaled_step(scaler, optimizer))
        return seen

    def run() -> list[list[tuple[float, bool]]]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard as torchs
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        theirs = torchs(nn.Linear(4, 3), mesh=init_device_mesh("cpu", (3,)))
        found = [skips(torch.amp.GradScaler("cpu", init_scale=8.0), theirs)]
        for kind in (ShardedGradScaler, torch.amp.GradScaler):
            found.append(skips(kind("cpu", init_scale=8.0), fully_shard(nn.Linear(4, 3))))
        return found

    right, never = [(8.0, True), (4.0, False), (4.0, True)], [(8.0, True)] * 3
    first, _, last = launch(run, 3)
    assert last == [right] * 3, "torch's DTensor is looked at whole"
    assert first == [right, right, never], "torch.amp's own sees this rank's alone"
