"""algorithm="auto" against the backend's own, in turns: all-reduce and its two halves.

And the all-reduce with the check between ranks that `launch` switches on, beside the same without.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import minidist
from benchmarks.checks.copy_bandwidth import copy
from benchmarks.harness import turns
from benchmarks.harness.bus_bandwidth import FACTORS, bus_bandwidth
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import MIB, Scope, Setup
from benchmarks.harness.training import NO_TIME
from benchmarks.harness.turns import LEAST_ROUNDS, Call, Repeats, Turns

SHARE = 0.7  # of a setup's time, for the turns
COPY_ROUNDS = 15

Timed = tuple[Row, Turns | None]  # collective and size; None: left out


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for a copy of each size, then for each collective and size in each setup."""
    alone = Setup(1, scope.device)
    (copied,) = alone.launch(copies, scope.message_bytes, timeout=clock.left())
    yield from copied
    yield from in_each_setup(_measure)(scope, clock)


def copies(sizes: tuple[int, ...]) -> list[Row]:
    """On one rank, within the memory of its device."""
    rows = []
    for size in sizes:
        source = torch.ones(size // 4, device=minidist.device())
        repeats = Repeats(calls_in_a_row(size), COPY_ROUNDS)
        rows.append(copy(source, torch.empty_like(source), repeats))
    return rows


def _measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    seconds = SHARE * clock.left()
    sizes, rounds = scope.message_bytes, scope.rounds
    of_ranks = setup.launch(on_rank, sizes, rounds, seconds, timeout=clock.left())
    for cell in zip(*of_ranks, strict=True):
        row, timed = cell[0][0], [each for _, each in cell if each]
        yield row | (_times(row, setup.ranks, timed) if timed else {"left_out": NO_TIME})


def _times(row: Row, ranks: int, timed: list[Turns]) -> Row:
    """Quartiles in milliseconds, ratios of the medians, bus bandwidth in GB/s."""
    seconds = turns.quartiles(timed)
    found: Row = {f"{way}_ms": turns.milliseconds(each) for way, each in seconds.items()}
    for way in ("auto", "native"):
        if way in seconds:
            rate = bus_bandwidth(row["what"], row["bytes"], ranks, seconds[way][1])
            found[f"{way}_bus_gb_per_s"] = turns.digits(rate / 1e9)
    if "native" in seconds:
        found["ratio"] = turns.digits(seconds["auto"][1] / seconds["native"][1])
    if "checked" in seconds:
        found["checked_ratio"] = turns.digits(seconds["checked"][1] / seconds["auto"][1])
    return {**found, "rounds": len(timed[0].intervals["auto"]), "calls": timed[0].calls}


def on_rank(sizes: tuple[int, ...], rounds: int | None, seconds: float) -> list[Timed]:
    """The turns of each collective and size, if no `rounds` are given in about `seconds`."""
    cells = [(name, size) for size in sizes for name in FACTORS]
    end = time.monotonic() + seconds
    found: list[Timed] = []
    per_byte = dict.fromkeys(FACTORS, 0.0)  # seconds of one call of each way, by the size before
    for done, (name, size) in enumerate(cells):
        left = -turns.max_over_ranks(time.monotonic() - end)  # the same on all ranks
        least = per_byte[name] * size * (3 + LEAST_ROUNDS)  # with two trials and one to warm up
        if not rounds and least >= left:
            found.append(({"what": name, "bytes": size}, None))
            continue
        ways, row, reset = _prepare(name, size)
        repeats = Repeats(calls_in_a_row(size), rounds or 0)
        if not rounds:
            trials = turns.trial(ways, reset)
            per_byte[name] = sum(trials) / size
            repeats = turns.repeats_within(left / (len(cells) - done), trials)
        found.append((row, turns.take_turns(ways, repeats, reset) if repeats.rounds else None))
    return found


def _prepare(name: str, size: int) -> tuple[dict[str, Call], Row, Call]:
    """The ways to call a collective, its row so far, and what resets its tensors."""
    ranks, device = dist.get_world_size(), minidist.device()
    part = max(1, size // 4 // ranks)
    full, mine = (torch.ones(n, device=device) for n in (part * ranks, part))
    ways = _ways(name, full, mine)
    row: Row = {"what": name, "bytes": full.nbytes}
    if error := turns.refusal(ways["native"]):  # Gloo may lack it for a GPU's tensors
        row["native_refuses"] = error
        del ways["native"]
    return ways, row, lambda: full.fill_(1)


def calls_in_a_row(nbytes: int) -> int:
    """How many calls make a turn."""
    return 10 if nbytes <= 4 * MIB else 4


def _ways(name: str, full: torch.Tensor, mine: torch.Tensor) -> dict[str, Call]:
    # torch 2.13 has new names, and warns of the old ones
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    table: dict[str, tuple[Any, Any, tuple[torch.Tensor, ...]]] = {
        "all_reduce": (minidist.all_reduce, dist.all_reduce, (full,)),
        "reduce_scatter": (minidist.reduce_scatter_tensor, scatter, (mine, full)),
        "all_gather": (minidist.all_gather_into_tensor, gather, (full, mine)),
    }
    ours, native, tensors = table[name]
    auto = partial(ours, *tensors, algorithm="auto")
    ways: dict[str, Call] = {
        "auto": partial(auto, check=False),
        "native": partial(native, *tensors),
    }
    return ways | ({"checked": partial(auto, check=True)} if name == "all_reduce" else {})
