"""What each way of sharding puts on the wire in a step, counted by the transport, to the byte.

A *unit* of traffic is the model, padded, times (N - 1)/N for each rank: what a rank sends in one
all-gather or one reduce-scatter of it. All ranks together send N - 1 times the padded model.
"""

from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

import minidist
from minidist import Counted, launch
from minidist.comm.ours import Ours
from tests.proof.cases import FSDP, OPTIMIZERS, Made, wrapped

SIZES = (61, 13, 11)  # of layers; nothing divides them
STEPS = 3  # in the first DDP has not yet settled its buckets: what is counted is the last


class Layers(nn.Sequential):
    """Two linear layers; in all that is counted here each is a unit."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(*(nn.Linear(*sizes) for sizes in pairwise(SIZES)))


def padded(layout: str, ranks: int) -> int:
    """Bytes of the model as it is cut for so many ranks."""

    def up(size: int) -> int:
        return -(-size // ranks) * ranks

    if layout == "rows":  # of each parameter
        return 4 * sum(up(len(p)) * (p.numel() // len(p)) for p in Layers().parameters())
    size = sum(p.numel() for p in Layers().parameters())
    return 4 * (up(size) if layout == "model" else size)


def made(way: str, comm: Any, cap: float = 25, model: nn.Module | None = None) -> Made:
    """The model, in one of the ways of the proof, ready to train."""
    model = model or Layers()
    return wrapped(model, way, comm, OPTIMIZERS["adamw"], cap, units=[*model, model])


def train(ready: Made, counts: list[Counted], micro: int = 1, quiet: bool = False) -> list[int]:
    """Bytes that this rank sent in the last of a few steps, over each comm, but for the flags."""
    model, optimizer = ready.model, ready.optimizer
    for number in range(STEPS):
        for counted in counts:
            counted.clear()
        optimizer.zero_grad()
        for turn in range(micro):
            seed = 100 * dist.get_rank() + 10 * number + turn
            inputs = torch.randn(2, SIZES[0], generator=torch.Generator().manual_seed(seed))
            with ready.quiet() if quiet and turn < micro - 1 else nullcontext():
                model(inputs).square().mean().backward()
        optimizer.step()
    parameters = sum(parameter.requires_grad for parameter in model.parameters())
    return [each.bytes_sent - flags(each, parameters, 1 if quiet else micro) for each in counts]


def flags(comm: Counted, parameters: int, most: int) -> int:
    """What FSDP and ZeRO send, where they reduce, to learn which parameters have been used."""
    calls = zip(comm.calls, comm._logs, strict=True)
    logs = [log for call, log in calls if (call.name, call.nbytes) == ("all_reduce", parameters)]
    assert len(logs) <= most
    return sum(message.nbytes for log in logs for message in log)


class Row(NamedTuple):
    """`units` of `layout`, in one step of `micro` backwards; and in one of DDP's own gradients."""

    way: str
    layout: str
    units: int
    of_ddp: int = 0
    micro: int = 1
    quiet: bool = False
    cap: float = 25  # MiB of a bucket


ROWS = [
    Row("ddp", "bare", 2),
    Row("ddp", "bare", 2, cap=1e-6),  # a bucket for each parameter
    Row("ddp", "bare", 2, 0, 3, True),
    Row("ddp", "bare", 6, 0, 3),
    Row("zero 1 on ddp", "model", 1, 2),
    Row("zero 1 on ddp", "model", 1, 2, 3, True),
    Row("zero 1", "model", 2),
    Row("zero 1", "model", 2, 0, 3),
    Row("zero 2", "model", 2),
    Row("zero 2", "model", 3 + 1, 0, 3),
]
for _way in FSDP:
    _all = 2 if "kept" in _way else 3  # gathers before forward and backward, and a reduction
    ROWS += [
        Row(_way, "rows", _all),
        Row(_way, "rows", 3 * _all, 0, 3),
        Row(_way, "rows", 3 * (_all - 1) + 1, 0, 3, True),
    ]


@pytest.mark.claim("C11", "C5", "D8", "E11")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_on_the_wire_are_the_formula_s(ranks: int) -> None:
    rows = [row for row in ROWS if ranks == 3 or row.micro == 1]

    def run() -> list[int]:
        sent = []
        for row in rows:
            comm = Counted(Ours(algorithm="ring"))
            sent += train(made(row.way, comm, row.cap), [comm], row.micro, row.quiet)
        return sent

    found = launch(run, ranks, timeout=120)
    for row, *sent in zip(rows, *found, strict=True):
        units = row.units * padded(row.layout, ranks) + row.of_ddp * padded("bare", ranks)
        assert sum(sent) == (ranks - 1) * units, row
        if row.layout != "bare" and not row.of_ddp:  # equal slices: each sends as much
            assert sent == [units * (ranks - 1) // ranks] * ranks, row


def test_frozen_layers_are_gathered_and_never_reduced() -> None:
    def run() -> list[int]:
        comm, model = Counted(Ours(algorithm="ring")), Layers()
        model[0].requires_grad_(False)
        return train(made("fsdp", comm, model=model), [comm])

    # The frozen layer comes first and its input needs no gradient: backward has no use for it.
    ranks, frozen, trained = 3, 15 * 62, 12 * 14
    assert launch(run, ranks) == [[4 * (frozen + 3 * trained) * (ranks - 1) // ranks]] * ranks


def test_what_is_gathered_to_look_at_is_counted_too() -> None:
    """A full state dict costs one all-gather of the model; a clipped norm, a few numbers."""

    def run() -> tuple[int, int]:
        comm = Counted(Ours(algorithm="ring"))
        ready = made("fsdp", comm)
        train(ready, [comm])
        comm.clear()
        minidist.full_state_dict(ready.model)
        gathered = comm.bytes_sent
        comm.clear()
        minidist.clip_grad_norm_(ready.model, 1.0)
        return gathered, comm.bytes_sent

    ranks = 3
    for gathered, clipped in launch(run, ranks):
        assert gathered == padded("rows", ranks) * (ranks - 1) // ranks
        assert clipped < 100
