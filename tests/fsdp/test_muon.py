"""minidist.Muon on shards steps as torch.optim.Muon does on whole matrices; and what it sends."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.flop_counter import FlopCounterMode

from minidist import Counted, Muon, Ours, ZeroOptimizer, full_state_dict, fully_shard, launch
from minidist.formulas import muon
from minidist.memory.meter import measured
from minidist.parallel.fsdp.muon import orthogonalize
from minidist.planner.jobs import matrices as matrices_of
from tests.fsdp.test_hybrid import rows_of_two
from tests.support.models import gpt, score, shard_blocks, tokens
from tests.support.muon import SHAPES, all_off, matrices
from tests.support.refusals import says
from tests.support.training import far, mine


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_steps_are_torchs_on_whole_matrices(ranks: int) -> None:
    """Of every shape and both dtypes, in one row of ranks and in two; frozen, without gradient."""
    assert launch(all_off, ranks) == [{}] * ranks


def hidden(model: nn.Module, inside: bool) -> list[nn.Parameter]:
    """The blocks' matrices, or all else; of the tied embedding and head nothing is inside."""
    named = model.named_parameters()
    return [
        p
        for name, p in named
        if (
            "blocks" in name
            and name.endswith("weight")
            and len(getattr(p, "whole_shape", p.shape)) == 2
        )
        == inside
    ]


def test_a_gpt_trains_as_on_one_process_beside_an_adamw() -> None:
    def run() -> str:
        model, alone = shard_blocks(gpt()), gpt()
        for net, kind in ((model, Muon), (alone, optim.Muon)):
            net.optimizers = [kind(hidden(net, True), lr=0.02), optim.AdamW(hidden(net, False))]
        for step in range(3):
            score(model, mine(tokens(step, 12))).backward()
            score(alone, tokens(step, 12)).backward()
            for each in (*model.optimizers, *alone.optimizers):
                each.step()
                each.zero_grad()
        return far(full_state_dict(model), dict(alone.state_dict()), 1e-8)

    assert launch(run, 3) == [""] * 3


def test_plain_matrices_on_one_process_need_no_ranks() -> None:
    ours, theirs = (nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    for each, optimizer in ((ours, Muon([ours])), (theirs, optim.Muon([theirs]))):
        each.grad = torch.arange(12.0).view(3, 4)
        optimizer.step()
    assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match=r"^Muon: parameter 1: expected a matrix .* got \(3,\)"):
        Muon([ours, nn.Parameter(torch.ones(3))])


# ---- what it sends ----


def test_a_step_sends_four_bytes_per_parameter_of_which_a_rank_sends_its_part() -> None:
    """Exactly: each rank its rows to each owner, and each owner the results, padded, in bf16."""

    def run(rows: int) -> tuple[int, int, list[str]]:
        between, comm = rows_of_two() if rows else (None, Counted(Ours(algorithm="ring")))
        net = matrices(torch.float32)
        for layer in net:
            fully_shard(layer, comm=(between, comm) if between else comm)
            layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer = Muon(net.parameters())
        for each in filter(None, (between, comm)):
            each.clear()
        optimizer.step()
        owned = [0] * comm.ranks
        for (high, wide), owner in zip(SHAPES, muon.owners(SHAPES, comm.ranks), strict=True):
            owned[owner] += -(-high // comm.ranks) * wide  # elements that a rank has of its own
        own = owned[comm.rank]
        assert not (between and between.bytes_sent), "rows of ranks send each other nothing"
        derived = 2 * (sum(owned) - own) + 2 * (comm.ranks - 1) * own
        return comm.bytes_sent, derived, [call.name for call in comm.calls]

    for ranks, rows in ((2, 0), (4, 0), (4, 2)):
        found, sharers = launch(run, ranks, rows), ranks // (rows or 1)
        for sent, derived, calls in found:
            assert (sent, calls) == (derived, ["all_to_all"] * 2)
        padded = sum(-(-high // sharers) * sharers * wide for high, wide in SHAPES)
        total = sum(sent for sent, *_ in found) / (rows or 1)
        assert total == 4 * padded * (sharers - 1) / sharers


def test_what_the_formulas_say_is_what_is_executed() -> None:
    """Operations of each shape; bytes sent on average, and held by the fullest owner."""
    for shape in SHAPES:
        group = {"ns_coefficients": (1, 1, 1), "eps": 1e-7, "ns_steps": 5}
        with FlopCounterMode(display=False) as counter:
            orthogonalize(torch.empty(shape, device="meta"), group)
        assert counter.get_total_flops() == muon.newton_schulz(*shape), shape
    shapes = [(512, 768)] * 3 + [(768, 512)] * 2

    def run() -> tuple[int, int]:
        comm = Counted(Ours(algorithm="ring"))
        layers = [fully_shard(nn.Linear(b, a, bias=False), comm=comm) for a, b in shapes]
        for layer in layers:
            layer.weight.grad = torch.ones_like(layer.weight)
        optimizer = Muon([layer.weight for layer in layers])
        optimizer.step()
        comm.clear()
        return measured(optimizer.step).peak, comm.bytes_sent

    peaks, bytes_sent = zip(*launch(run, 2), strict=True)
    assert sum(bytes_sent) / 2 == muon.sent(shapes, 2)
    assert max(peaks) == pytest.approx(muon.held(shapes, 2), rel=0.1)


def test_owners_share_the_work() -> None:
    shapes = matrices_of("medium")
    work = [muon.newton_schulz(*shape) for shape in shapes]
    assert muon.most_owned(shapes, work, 64) / (sum(work) / 64) < 1.1
    assert (muon.owners([(4, 4)], 3), muon.owners([], 3)) == ([0], [])


# ---- what it refuses, on all ranks and before anything is sent ----

BIAS = "parameter '0.bias' of the outermost unit (Sequential): expected a matrix of floating-point "
BIAS += "numbers, got (6,), torch.float32; give it to another optimizer, such as AdamW"
PLAIN = "parameter 0: expected a shard of minidist.fully_shard or a plain parameter, got a "
# What is wrong → on which ranks it is, what these say, and what the first of the other ranks does.
WRONG: dict[str, tuple[list[int], str, str]] = {
    "a vector": ([0, 1, 2, 3], f"ValueError: rank {{}}: Muon: {BIAS}", ""),
    "a vector there": ([3], f"ValueError: rank {{}}: Muon: {BIAS}", "Muon: on rank 2: Muon: on ra"),
    "another order": ([], "", "Muon: the ranks disagree on parameter 0: rank 0 passed parameter"),
    "a bad lr": ([2], "ValueError: rank {}: Muon: Learning rate should be >= 0 but is: -1", "Muon"),
    "a DTensor": ([0, 1, 2, 3], f"TypeError: rank {{}}: Muon: {PLAIN}DTensor", ""),
    "an old one": ([0, 1, 2, 3], f"TypeError: rank {{}}: Muon: {PLAIN}Replaced", ""),
    "more": ([0, 1, 2, 3], "NotImplementedError: Muon.add_param_group: build it anew, with", ""),
    "in ZeRO": ([0, 1, 2, 3], "ValueError: rank {}: ZeroOptimizer: optimizer_class: expected", ""),
    "no gradient": ([], "", "Muon.step: the ranks disagree on the parameters without gradient in "),
    "its own lr": ([], "", "Muon.step: the ranks disagree on lr: rank 0 passed [0.1]; rank 1 pass"),
    "two numbers": (
        [0, 1, 2, 3],
        "ValueError: rank {}: Muon.step: ns_coefficients: expected three, got (1, 2)",
        "",
    ),
}


def wrong_calls() -> dict[str, str]:
    from torch.distributed.fsdp import fully_shard as torchs

    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)), mesh=mesh)
    weights = [model[0].weight, model[1].weight]
    theirs: Any = torchs(nn.Linear(4, 4, bias=False), mesh=init_device_mesh("cpu", (4,)))
    kept = nn.Linear(4, 4, bias=False)
    old = kept.weight
    fully_shard(kept)

    def step(missing: bool = False, **changes: Any) -> None:
        optimizer = Muon(weights)
        for each in weights:
            each.grad = torch.ones_like(each)
        weights[1].grad = None if missing else weights[1].grad
        optimizer.param_groups[0].update(changes)
        optimizer.step()

    calls: list[Callable[[], object]] = [
        lambda: Muon(model.parameters()),
        lambda: Muon(weights + [model[0].bias] * (rank == 3)),
        lambda: Muon(weights[:: -1 if rank == 1 else 1]),
        lambda: Muon(weights, lr=-1 if rank == 2 else 1),
        lambda: Muon(theirs.parameters()),
        lambda: Muon([old]),
        lambda: Muon(weights).add_param_group({"params": [kept.weight]}),
        lambda: ZeroOptimizer([nn.Parameter(torch.ones(2, 2))], Muon),
        lambda: step(missing=rank == 1),
        lambda: step(lr=0.1 * (rank + 1)),
        lambda: step(ns_coefficients=(1, 2)),
    ]
    before = [each.detach().clone() for each in weights]
    said = {name: says(call, Exception) for name, call in zip(WRONG, calls, strict=True)}
    assert all(map(torch.equal, before, weights))
    return said


def test_what_is_no_matrix_and_what_differs_is_refused_on_all_ranks() -> None:
    found, offenders = launch(wrong_calls, 4), []
    for name, (ranks, own, others) in WRONG.items():
        for rank, said in enumerate(each[name] for each in found):
            want = (
                own.format(rank)
                if rank in ranks
                else f"MismatchError: {others if rank == 0 else ''}"
            )
            offenders += [] if said.startswith(want) else [f"{name}, rank {rank}: {said}"]
    assert not offenders, "\n".join(offenders)


def test_torchs_muon_is_refused_still_and_says_what_to_do() -> None:
    def run() -> str:
        model = fully_shard(nn.Linear(4, 4, bias=False))
        model(torch.ones(2, 4)).sum().backward()
        return says(optim.Muon(model.parameters()).step)

    assert all("or for Muon build a minidist.Muon" in said for said in launch(run, 2))


# ---- state ----


def test_each_rank_saves_and_loads_its_own_momentum(tmp_path: Path) -> None:
    def run() -> str:
        rank = dist.get_rank()

        def made(seed: int) -> tuple[Any, Muon]:
            torch.manual_seed(seed)
            model = fully_shard(nn.Linear(4, 5, bias=False))
            return model, Muon(model.parameters(), lr=0.1)

        def step(model: Any, optimizer: Muon, number: int) -> None:
            batch = torch.randn(2, 4, generator=torch.Generator().manual_seed(number + rank))
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        model, optimizer = made(0)
        step(model, optimizer, 0)
        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / f"{rank}.pt")
        step(model, optimizer, 9)
        again, another = made(1)
        states = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        again.load_state_dict(states[0])
        another.load_state_dict(states[1])
        step(again, another, 9)
        assert far(full_state_dict(again), full_state_dict(model), 0) == ""
        dist.barrier()
        another.load_state_dict(torch.load(tmp_path / f"{1 - rank}.pt", weights_only=True)[1])
        return says(partial(step, again, another, 0))

    for rank, said in enumerate(launch(run, 2)):
        want = f"rank {rank}: Muon: expected the state of rank {rank} of 2, got that of rank"
        assert said.startswith(f"RuntimeError: {want} {1 - rank} of 2")


# ---- torch's own ----


def test_torchs_own_on_dtensors_sends_in_every_product() -> None:
    """Wide: 15 all-gathers; tall: 10 all-reduces; without a row on a rank, no step at all."""

    def run() -> dict[tuple[int, int], Any]:
        from torch.distributed.fsdp import fully_shard as torchs
        from torch.distributed.tensor.debug import CommDebugMode

        class Counts(CommDebugMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                result = super().__torch_dispatch__(func, types, args, kwargs)
                for name, times in (("all_gather_into_tensor", 4), ("all_reduce", 2)):
                    if f"_c10d_functional.{name}" in str(func) and args[0].ndim:
                        sent.append(times * args[0].nbytes * 3 // 4)
                own = type(result) is torch.Tensor  # and no DTensor
                if own and str(func) in ("aten.mm.default", "aten.addmm.default"):
                    operations.append(2 * result.numel() * args[-1].shape[0])
                return result

        found: dict[tuple[int, int], Any] = {}
        for shape in ((8, 16), (8, 8), (16, 8), (3, 8)):
            sent, operations, (high, wide) = [], [], shape  # type: ignore[var-annotated]
            layer: Any = torchs(nn.Linear(wide, high, bias=False))
            layer(torch.ones(2, wide)).sum().backward()
            optimizer = optim.Muon(layer.parameters())
            with Counts():
                said = says(optimizer.step) if high < 4 else optimizer.step()
            found[shape] = said or (len(sent), (sum(operations), sum(sent)))
        return found

    for found in launch(run, 4):
        assert "in-place operations that require placement changes" in found.pop((3, 8))
        assert found == {
            shape: (10 if shape == (16, 8) else 15, muon.by_dtensors([shape], 4))
            for shape in ((8, 16), (8, 8), (16, 8))
        }


def test_bf16_momentum_without_nesterov_stays_momentum() -> None:
    """Whether plain or sharded; torch 2.13 normalizes it in place: pytorch#194664."""

    def run() -> list[bool]:
        plain = nn.Linear(4, 8, bias=False, dtype=torch.bfloat16)
        weights = [plain.weight, fully_shard(copy.deepcopy(plain)).weight]
        optimizer = Muon(weights, nesterov=False)
        for each in weights:
            each.grad = torch.full_like(each, 8)
        optimizer.step()
        means = [optimizer.state[each]["momentum_buffer"].float() for each in weights]
        return [torch.allclose(mean, torch.full_like(mean, 0.4), 1e-2) for mean in means]

    assert launch(run, 2) == [[True, True]] * 2
