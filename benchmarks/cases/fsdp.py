"""A step under minidist's `fully_shard` and under torch's (FSDP2), in turns, in one process group.

Both shard block by block, and then the root. Beside them is DDP, with the same AdamW: its step
against FSDP's for models of some widths, and what either can do within a limit of memory.
"""

import os
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim import AdamW

import minidist
from benchmarks.cases.zero import RATE, unsharded
from benchmarks.harness import training, turns
from benchmarks.harness.memory import compare_memory, largest
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.training import CONTEXT, Comparison, Config, Trained, Training, Way, build
from benchmarks.harness.turns import Repeats, Turns
from course.training.models import GPT
from from_scratch.fsdp import FSDP

BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)  # gradients are summed in float32
PREDICTED: dict[str, dict[str, Any] | None] = {
    "torch": None,
    "torch, kept": None,
    "ddp": {"strategy": "ddp", "gradient_as_bucket_view": True},
    "fsdp": {"strategy": "fsdp"},
    "fsdp, kept": {"strategy": "fsdp", "reshard_after_forward": False},
}


def reference(module: GPT) -> Trained:
    """Torch's DDP: sharding must not change its losses."""
    ddp = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    return ddp, AdamW(ddp.parameters(), RATE)


def ours(**options: Any) -> Way:
    """Ours, per block and then the root."""

    def way(module: GPT) -> Trained:
        for each in (*module.blocks, module):
            minidist.fully_shard(each, **options)
        return module, AdamW(module.parameters(), RATE)

    return way


def torchs(**options: Any) -> Way:
    """Torch's, per block and then the root."""

    def way(module: GPT) -> Trained:
        mesh = init_device_mesh(minidist.device().type, (dist.get_world_size(),))
        for each in (*module.blocks, module):
            torch.distributed.fsdp.fully_shard(each, mesh=mesh, **options)
        return module, AdamW(module.parameters(), RATE)

    return way


def lesson(module: GPT) -> Trained:
    """From_scratch's, which waits for its last gradients before the optimizer's step."""
    model = FSDP(module, module.blocks, minidist.Ours())
    optimizer = AdamW(model.shards, RATE)
    optimizer.register_step_pre_hook(lambda *_: model.synchronize())
    return model, optimizer


def ways(precision: str) -> dict[str, Way]:
    """On a rank: all that are compared. `kept`: parameters stay gathered until backward is over."""
    mixed = {"mp_policy": BF16} if precision == "bf16" else {}
    plain = {} if mixed else {"from_scratch": lesson}  # it has one dtype
    return {
        "torch": torchs(**mixed),
        "torch, kept": torchs(reshard_after_forward=False, **mixed),
        "ddp": unsharded,
        "fsdp": ours(**mixed),
        "fsdp, kept": ours(reshard_after_forward=False, **mixed),
        "fsdp, native": ours(comm=minidist.Native(), **mixed),
        **plain,
    }


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """Losses and times of steps, and memory; times by width; batches within a limit of memory."""
    yield from in_each_setup(_measure)(scope, clock)
    if scope.widths:
        yield from by_width(scope.setups[0], scope, clock)
    if scope.batches:
        yield from within_limits(scope.setups[-1], scope, clock)


def _measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    comparison = Comparison(ways, reference, checkpointed=("fsdp",))
    yield from training.compare(comparison, setup, scope, clock)
    yield from compare_memory(comparison, PREDICTED, setup, scope, clock)


def by_width(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A step of DDP and of FSDP, for models of some widths; `ratio` is to DDP's."""
    for width in scope.widths:
        config = Config(width)
        of_ranks = setup.launch(time_both, config, scope.rounds, timeout=clock.left())
        parameters = sum(each.numel() for each in build(config, "meta").parameters())
        model = {"width": width, "layers": config.layers, "parameters": parameters}
        for row in training.step_rows(of_ranks, "ddp"):
            yield {**row, "what": "size", "ranks": setup.ranks, **model}


def time_both(config: Config, rounds: int) -> Turns:
    """On a rank: steps of DDP and of FSDP."""
    os.environ["MINIDIST_CHECK"] = "0"
    return training.time_steps({"ddp": unsharded, "fsdp": ours()}, config, rounds)


def within_limits(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """The largest batch of DDP and of FSDP whose peak is within a limit, and what it gets done.

    The limits are DDP's peak with the largest batch, its peak with the smallest, and its state.
    """
    width, batches = max(scope.widths), scope.batches
    rounds = max(2, (scope.rounds or 0) // 3)
    cases = [(way, Config(width, batch=n)) for way, n in product(("ddp", "fsdp"), batches)]
    memory = largest(ways, cases, setup, 1, clock)
    found = {(way, config.batch): row for (way, config), row in memory.items()}
    seconds = turns.quartiles(setup.launch(time_batches, cases, rounds, timeout=clock.left()))
    for limit in (
        found["ddp", batches[-1]]["peak_bytes"],
        found["ddp", batches[0]]["peak_bytes"],
        found["ddp", batches[0]]["held_bytes"],
    ):
        for way in ("ddp", "fsdp"):
            fit = [batch for batch in batches if found[way, batch]["peak_bytes"] <= limit]
            row: Row = {"what": "limit", "ranks": setup.ranks, "way": way, "width": width}
            row |= {"limit": limit, "batch": 0, "peak": 0, "tokens_per_second": 0}
            if fit:
                tokens = setup.ranks * fit[-1] * CONTEXT
                per_second = round(tokens / seconds[f"{way}, {fit[-1]}"][1])
                peak = found[way, fit[-1]]["peak_bytes"]
                row |= {"batch": fit[-1], "peak": peak, "tokens_per_second": per_second}
            yield {**row, "rounds": rounds}


def time_batches(cases: list[tuple[str, Config]], rounds: int) -> Turns:
    """On a rank: turns of "WAY, BATCH", of one step each."""
    os.environ["MINIDIST_CHECK"] = "0"
    all_ways = ways("fp32")
    steps = {f"{way}, {c.batch}": Training(all_ways[way], c).step for way, c in cases}
    return turns.take_turns(steps, Repeats(1, rounds))
