"""Rows of the tables about FSDP: published runs, read and set beside what formulas say."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from minidist.memory.state import AUTOCAST
from minidist.planner.hardware import Accelerator
from minidist.planner.planner import plan
from minidist.planner.sizes import Sizes

MOST = 4  # sequences of a micro-batch, from which on more of them change little


def ddp_beside_fsdp(record: Mapping[str, Any]) -> list[list[int | float | str]]:
    """Of the record `ddp_fsdp_zero`: millions of parameters, ms of a step, and GiB at the peak.

    Both are given under DDP and FSDP; of a run that did not fit they are "".
    """
    runs = {(row[1], row[0]): row[-3:] for row in record["sizes_8_gpus"]}
    rows = []
    for parameters in sorted({parameters for parameters, _ in runs}):
        pair = [runs[parameters, way] for way in ("ddp", "fsdp")]
        steps = [round(ms) if fits else "" for fits, ms, _ in pair]
        peaks = [mebibytes / 1024 if fits else "" for fits, _, mebibytes in pair]
        rows.append([round(parameters / 1e6), *steps, *peaks])
    return rows


def what_fits(sizes: Sizes, gpu: Accelerator, gpus: int) -> dict[tuple[str, bool], tuple[int, int]]:
    """(strategy, recomputes activations) → sequences that fit a GPU, and tokens/s of each GPU.

    The speed is predicted with as many sequences as fit, but no more than `MOST`; 0 if none does.
    """
    found = {}
    for recompute, name in product((True, False), ("ddp", "fsdp")):
        how: Any = {"policy": AUTOCAST, "checkpointing": recompute}
        most = plan(sizes, gpu, gpus, batch=1, **how).forecasts[name].largest_batch
        run = plan(sizes, gpu, gpus, batch=max(1, min(most, MOST)), **how).forecasts[name]
        found[name, recompute] = most, round(run.tokens_per_second / gpus) if most else 0
    return found
