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
from torch.optim import AdamW

import minidist
from benchmarks import small_gpt, turns
from benchmarks.footprint import TRIES, largest, memory
from benchmarks.record import Row
from benchmarks.small_gpt import CONTEXT, LAYERS, RANKS, ROUNDS, STEPS, WIDTH, Training, Way
from course.training.models import GPT
from minidist.comm.comm import Native

RATE = 1e-3
CAP = 1  # MiB of a bucket of DDP's
WIDTHS = (32, 64, 128, 256)
BATCHES = (1, 2, 4, 8)  # rows of a rank

Trained = tuple[torch.nn.Module, torch.optim.Optimizer]


def ours(**options: Any) -> Way:
    """Ours, per block."""

    def way(module: GPT) -> Trained:
        for block in module.blocks:
            minidist.fully_shard(block, **options)
        minidist.fully_shard(module, **options)
        return module, AdamW(module.parameters(), lr=RATE)

    return way


def torchs(**options: Any) -> Way:
    """Torch's, per block."""

    def way(module: GPT) -> Trained:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in module.blocks:
            torch.distributed.fsdp.fully_shard(block, mesh=mesh, **options)
        torch.distributed.fsdp.fully_shard(module, mesh=mesh, **options)
        return module, AdamW(module.parameters(), lr=RATE)

    return way


def ddp(module: GPT) -> Trained:
    """Our DDP."""
    wrapped = minidist.DistributedDataParallel(
        module, bucket_cap_mb=CAP, gradient_as_bucket_view=True
    )
    return wrapped, AdamW(wrapped.parameters(), lr=RATE)


def ways() -> dict[str, Way]:
    """On a rank: all that are compared. `kept`: parameters stay whole until backward is over."""
    return {
        "torch": torchs(),
        "torch, kept": torchs(reshard_after_forward=False),
        "ddp": ddp,
        "fsdp": ours(),
        "fsdp, flat": ours(layout="flat"),
        "fsdp, kept": ours(reshard_after_forward=False),
        "fsdp, no prefetch": ours(prefetch=False),
        "fsdp, native": ours(comm=Native()),
    }


MEMORY: dict[str, dict[str, Any] | None] = {  # way → what is predicted; None: nothing is
    "torch": None,
    "torch, kept": None,
    "ddp": {"strategy": "ddp", "gradient_as_bucket_view": True},
    "fsdp": {"strategy": "zero3"},
    "fsdp, flat": {"strategy": "zero3", "layout": "flat"},
    "fsdp, kept": {"strategy": "zero3", "reshard_after_forward": False},
    "fsdp, no prefetch": {"strategy": "zero3", "prefetch": False},
}


def in_turns(rounds: int, width: int) -> small_gpt.Seen:
    """On a rank: way → its turns, and way → its losses."""
    return small_gpt.in_turns(ways(), rounds, width)


def by_width(rounds: int, widths: tuple[int, ...]) -> dict[int, small_gpt.Seen]:
    """On a rank: width → turns and losses of DDP and FSDP."""
    both = {"ddp": ddp, "fsdp": ours()}
    return {width: small_gpt.in_turns(both, rounds, width) for width in widths}


def measure(
    rounds: int = ROUNDS,
    ranks: tuple[int, ...] = RANKS,
    width: int = WIDTH,
    widths: tuple[int, ...] = WIDTHS,
    batches: tuple[int, ...] = BATCHES,
    tries: int = TRIES,
) -> list[Row]:
    """Quartiles of a step in milliseconds, the ratio of the medians to torch's; bytes; limits.

    Raises:
        AssertionError: ways did not train alike.
    """
    rows: list[Row] = []
    for n in ranks:
        of_ranks = minidist.launch(in_turns, n, rounds, width, device="cpu", timeout=600)
        small_gpt.alike(of_ranks, "torch")
        much = {"rounds": rounds, "steps": STEPS}
        steps = small_gpt.times(of_ranks, "torch")
        rows += [{"what": "step", "ranks": n, **row, **much} for row in steps]
        rows += memory(ways, MEMORY, n, width, tries)
    rows += sizes(rounds, ranks[0], widths)
    return [*rows, *limits(max(2, rounds // 3), ranks[-1], max(widths), batches)]


def sizes(rounds: int, ranks: int, widths: tuple[int, ...]) -> Iterator[Row]:
    """A step of DDP and of FSDP, for models of some widths; `ratio` is to DDP's."""
    told = minidist.launch(by_width, ranks, rounds, widths, device="cpu", timeout=600)
    for width in widths:
        of_ranks = [seen[width] for seen in told]
        small_gpt.alike(of_ranks, "ddp")
        parameters = sum(each.numel() for each in small_gpt.model(width).parameters())
        model = {"width": width, "layers": LAYERS, "parameters": parameters}
        for row in small_gpt.times(of_ranks, "ddp"):
            yield {"what": "size", "ranks": ranks, **row, **model, "rounds": rounds}


def limits(rounds: int, ranks: int, width: int, batches: tuple[int, ...]) -> Iterator[Row]:
    """The largest batch of DDP and of FSDP whose peak is within a limit, and what it gets done.

    The limits are DDP's peak with the largest batch, its peak with the smallest, and its state.
    """
    cases = list(product(("ddp", "fsdp"), batches))
    found = largest(ways, cases, ranks, width, CONTEXT, tries=1)
    of_ranks = minidist.launch(
        batches_in_turns, ranks, rounds, width, batches, device="cpu", timeout=600
    )
    spans = {turn: [rank[turn] for rank in of_ranks] for turn in of_ranks[0]}
    seconds = {turn: turns.quartiles(each, 1)[1] for turn, each in spans.items()}
    for limit in (
        found["ddp", batches[-1]]["peak_bytes"],
        found["ddp", batches[0]]["peak_bytes"],
        found["ddp", batches[0]]["held_bytes"],
    ):
        for way in ("ddp", "fsdp"):
            fit = [batch for batch in batches if found[way, batch]["peak_bytes"] <= limit]
            row: Row = {"what": "limit", "ranks": ranks, "way": way, "width": width, "limit": limit}
            row |= {"batch": max(fit, default=0), "peak": 0, "tokens_per_second": 0}
            if fit:
                row["peak"] = found[way, fit[-1]]["peak_bytes"]
                tokens = ranks * fit[-1] * CONTEXT
                row["tokens_per_second"] = round(tokens / seconds[f"{way}, {fit[-1]}"])
            yield {**row, "rounds": rounds}


def batches_in_turns(
    rounds: int, width: int, batches: tuple[int, ...]
) -> dict[str, list[turns.Span]]:
    """On a rank: "WAY, BATCH" → its turns, of one step each."""
    os.environ["MINIDIST_CHECK"] = "0"
    steps = {}
    for name, way in {"ddp": ddp, "fsdp": ours()}.items():
        for batch in batches:
            steps[f"{name}, {batch}"] = Training(way, small_gpt.model(width), batch).step
    return turns.spans(steps, 1, rounds)
