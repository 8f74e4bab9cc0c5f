"""What each way of sharding puts on the wire in a step, counted by the transport, to the byte.

A *unit* of traffic is the model, padded, times (N - 1)/N for each rank: what a rank sends in one
all-gather or one reduce-scatter of it. All ranks together send N - 1 times the padded model.
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

import minidist
from minidist import Counted, DistributedDataParallel, ZeroOptimizer, fully_shard, launch
from minidist.comm.comm import Comm, Ours
from minidist.parallel.fsdp.fully_shard import FSDPModule
from tests.support.fsdp_models import bytes_of_flags
from tests.support.zero_training import bytes_by_call

SIZES = (61, 13, 11)  # of layers; nothing divides them
ADAM = {"lr": 1e-2}
STEPS = 3  # in the first DDP has not yet settled its buckets: what is counted is the last


def net() -> nn.Sequential:
    """Two linear layers; in all that is counted here each is a unit."""
    torch.manual_seed(0)
    layers = [nn.Linear(*sizes) for sizes in pairwise(SIZES)]
    return nn.Sequential(*layers)


def padded(layout: str, ranks: int) -> int:
    """Bytes of the model as it is cut for so many ranks."""

    def up(size: int) -> int:
        return -(-size // ranks) * ranks

    if layout == "dim0":  # each parameter by its rows
        return 4 * sum(up(len(p)) * (p.numel() // len(p)) for p in net().parameters())
    if layout == "unit":  # each layer end to end
        return 4 * sum(up(sum(p.numel() for p in layer.parameters())) for layer in net())
    size = sum(p.numel() for p in net().parameters())
    return 4 * (up(size) if layout == "model" else size)


class Ready(NamedTuple):
    """A model ready to train, and how to say that what follows is not to be reduced."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    quiet: Callable[[bool], Any] = lambda sync: None


def ddp(comm: Comm) -> Ready:
    model = DistributedDataParallel(net(), comm=comm)
    quiet = lambda sync: setattr(model, "require_backward_grad_sync", sync)  # noqa: E731
    return Ready(model, torch.optim.Adam(model.parameters(), **ADAM), quiet)


def zero(stage: int, gradients: str | None = None, cap: float = 25) -> Callable[[Comm], Ready]:
    def make(comm: Comm) -> Ready:
        model: nn.Module = net()
        quiet: Callable[[bool], Any] = lambda sync: None  # noqa: E731
        if gradients == "averaged":
            model, _, quiet = ddp(comm)
        options = {"stage": stage, "gradients": gradients, "bucket_cap_mb": cap, "comm": comm}
        return Ready(
            model, ZeroOptimizer(model.parameters(), torch.optim.Adam, **options, **ADAM), quiet
        )

    return make


def fsdp(layout: str, reshard: bool, prefetch: bool = True) -> Callable[[Any], Ready]:
    def make(comm: Any) -> Ready:
        model = net()
        options = {"layout": layout, "reshard_after_forward": reshard, "prefetch": prefetch}
        for part in [*model, model]:
            fully_shard(part, comm=comm, **options)
        return Ready(
            model,
            torch.optim.Adam(model.parameters(), **ADAM),
            model.set_requires_gradient_sync,
        )

    return make


def train(ready: Ready, counts: list[Counted], micro: int, quiet: bool) -> list[int]:
    """Bytes that this rank sent in the last of a few steps, over each comm.

    The flags of FSDP and ZeRO, a small all-reduce where gradients are reduced, are counted off.
    """
    model, optimizer = ready.model, ready.optimizer
    for number in range(STEPS):
        for counted in counts:
            counted.clear()
        optimizer.zero_grad()
        for turn in range(micro):
            if quiet:
                ready.quiet(turn == micro - 1)
            seed = 100 * dist.get_rank() + 10 * number + turn
            inputs = torch.randn(2, SIZES[0], generator=torch.Generator().manual_seed(seed))
            model(inputs).square().mean().backward()
        optimizer.step()
    sent = [counted.bytes_sent for counted in counts]
    if isinstance(model, FSDPModule):
        flags = sum(parameter.requires_grad for parameter in model.parameters())
        times = 1 if quiet else micro
        for index, counted in enumerate(counts):
            sent[index] -= times * bytes_of_flags(counted, flags)
    elif not isinstance(model, DistributedDataParallel):
        sent[0] -= flags_sent(optimizer, counts)
    return sent


def flags_sent(optimizer: Any, counts: list[Counted]) -> int:
    """The bytes of ZeRO's flags: once a step, one for each parameter, that says if it was used."""
    if not isinstance(optimizer, ZeroOptimizer):
        return 0
    numel, ranks = sum(len(g["params"]) for g in optimizer.param_groups), counts[0].ranks
    assert [call.nbytes for call in counts[0].calls if call.name == "all_reduce"] == [numel]
    flags = bytes_by_call(counts[0])["all_reduce"]
    assert flags <= 2 * (ranks - 1) * -(-numel // ranks)
    return flags


class Row(NamedTuple):
    """`units` of `layout`, in one step of `micro` backwards; and in one of DDP's own gradients."""

    make: Callable[[Any], Ready]
    layout: str
    units: int
    of_ddp: int = 0
    micro: int = 1
    quiet: bool = False


ROWS = {
    "ddp": Row(ddp, "bare", 2),
    "ddp, quiet": Row(ddp, "bare", 2, 0, 3, True),
    "ddp, 3 loud": Row(ddp, "bare", 6, 0, 3),
    "zero 1 on ddp": Row(zero(1, "averaged"), "model", 1, 2),
    "zero 1 on ddp, quiet": Row(zero(1, "averaged"), "model", 1, 2, 3, True),
    "zero 1": Row(zero(1, "local"), "model", 2),
    "zero 1, 3 micro-steps": Row(zero(1, "local"), "model", 2, 0, 3),
    "zero 2": Row(zero(2), "model", 2),
    "zero 2, 3 micro-steps": Row(zero(2), "model", 3 + 1, 0, 3),
}
for _layout, _padding in (("flat", "unit"), ("dim0", "dim0")):
    for _prefetch in (True, False):
        _name = f"fsdp {_layout}{'' if _prefetch else ', no prefetch'}"
        _all, _kept = (fsdp(_layout, reshard, _prefetch) for reshard in (True, False))
        ROWS |= {
            _name: Row(_all, _padding, 3),
            f"{_name}, 3 micro-steps": Row(_all, _padding, 9, 0, 3),
            f"{_name}, quiet": Row(_all, _padding, 2 * 3 + 1, 0, 3, True),
            f"{_name}, no reshard": Row(_kept, _padding, 2),
            f"{_name}, no reshard, 3 micro-steps": Row(_kept, _padding, 6, 0, 3),
            f"{_name}, no reshard, quiet": Row(_kept, _padding, 3 + 1, 0, 3, True),
        }


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_on_the_wire_are_the_formula_s(ranks: int) -> None:
    rows = {name: row for name, row in ROWS.items() if ranks == 3 or row.micro == 1}

    def run() -> dict[str, int]:
        sent = {}
        for name, row in rows.items():
            comm = Counted(Ours(algorithm="ring"))
            (sent[name],) = train(row.make(comm), [comm], row.micro, row.quiet)
        return sent

    found = launch(run, ranks, timeout=120)
    for name, row in rows.items():
        sent = [each[name] for each in found]
        units = row.units * padded(row.layout, ranks) + row.of_ddp * padded("bare", ranks)
        assert sum(sent) == (ranks - 1) * units, name
        if row.layout != "bare" and not row.of_ddp:  # equal slices: each sends as much
            assert sent == [units * (ranks - 1) // ranks] * ranks, name


def test_buckets_are_padded_one_by_one() -> None:
    """ZeRO in buckets of about a parameter: each is padded, and sent for itself."""

    def run() -> list[int]:
        comm = Counted(Ours(algorithm="ring"))
        (sent,) = train(zero(2, cap=1e-6)(comm), [comm], 1, False)
        return [sent, len(comm.calls) - 1]

    ranks = 4
    each = [-(-p.numel() // ranks) * ranks for p in net().parameters()]
    expected = [2 * 4 * sum(each) * (ranks - 1) // ranks, 2 * len(each)]
    assert launch(run, ranks) == [expected] * ranks


def test_frozen_layers_are_gathered_and_never_reduced() -> None:
    def run() -> dict[str, int]:
        sent = {}
        for layout in ("flat", "dim0"):
            comm, model = Counted(Ours(algorithm="ring")), net()
            model[0].requires_grad_(False)
            for part in [*model, model]:
                fully_shard(part, comm=comm, layout=layout)
            optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], **ADAM)
            (sent[layout],) = train(Ready(model, optimizer), [comm], 1, False)
        return sent

    ranks = 3
    sizes = {"flat": [13 * 62 + 1, 11 * 14 + 2], "dim0": [15 * 62, 12 * 14]}
    found = launch(run, ranks)
    for layout, (frozen, trained) in sizes.items():
        # The frozen layer comes first and its input needs no gradient: backward has no use for it.
        nbytes = 4 * (frozen + 3 * trained) * (ranks - 1) // ranks
        assert [each[layout] for each in found] == [nbytes] * ranks, layout


@pytest.mark.parametrize("layout", ["flat", "dim0"])
@pytest.mark.parametrize("reshard", [True, False])
def test_hybrid_shards_inside_and_replicates_across(layout: str, reshard: bool) -> None:
    """2 replicas of 2 shards: each rank gathers and scatters the model among S, and all-reduces
    its slice, of 1/S, among R: 3 (S - 1)/S + 2 (R - 1)/(R S) models, or one less (S - 1)/S.
    """

    def run() -> list[int]:
        rank = dist.get_rank()
        shard_groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        replicate_groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        replicate = Counted(Ours(replicate_groups[rank % 2], algorithm="ring"))
        shard = Counted(Ours(shard_groups[rank // 2], algorithm="ring"))
        ready = fsdp(layout, reshard)((replicate, shard))
        return train(ready, [replicate, shard], 1, False)

    shards = replicas = 2
    model = padded("unit" if layout == "flat" else "dim0", shards)
    inside = (3 if reshard else 2) * Fraction(shards - 1, shards) * model
    across = 2 * Fraction(replicas - 1, replicas) * model / shards
    found = launch(run, shards * replicas)
    assert [sum(each[0] for each in found), sum(each[1] for each in found)] == [
        4 * across,
        4 * inside,
    ]
    assert {each[1] for each in found} == {inside}


def test_what_is_gathered_to_look_at_is_counted_too() -> None:
    """A full state dict costs one all-gather of the model; a clipped norm, a few numbers."""

    def run() -> tuple[int, int]:
        comm = Counted(Ours(algorithm="ring"))
        ready = fsdp("flat", True)(comm)
        train(ready, [comm], 1, False)
        comm.clear()
        minidist.full_state_dict(ready.model)
        gathered = comm.bytes_sent
        comm.clear()
        minidist.clip_grad_norm_(ready.model, 1.0)
        return gathered, comm.bytes_sent

    ranks = 3
    for gathered, clipped in launch(run, ranks):
        assert gathered == padded("unit", ranks) * (ranks - 1) // ranks
        assert clipped < 100
