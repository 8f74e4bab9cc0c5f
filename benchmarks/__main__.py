"""`python -m benchmarks [CASE ...]` on the CPU; `python -m benchmarks gpu` on this host's GPUs,
and `python -m benchmarks gpu rates grid` for sections that are asked for by name: each has a record
of its own, written after each row.

To measure something more, write a module with a `measure(scope, clock)` that yields rows, and add
it to `CASES` or to `GPU_SECTIONS`. Ranks, rounds and bytes come from the scope, so that
`tests/benchmarks/test_cases.py` can run it small. Time it with `turns.take_turns`, beside torch's
own, and record ratios; `promises` has what the course says of a record, and `book/results.md` a
line of its table.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.cases import (
    ahead,
    collectives,
    ddp,
    experts,
    fsdp,
    grid,
    launch,
    local_sgd,
    memory_limit,
    plan,
    rates,
    ring,
    small_job,
    split,
    trace,
    zero,
)
from benchmarks.checks import collectives as checked_collectives
from benchmarks.checks import copy_bandwidth, multi_gpu, stream_order, suites
from benchmarks.harness import environment
from benchmarks.harness.record import Row, earlier, record
from benchmarks.harness.sections import Clock, Measure, Section, run
from benchmarks.harness.setups import Scope, Setup, on_gpus
from benchmarks.promises import broken

TWO_AND_FOUR = (Setup(2), Setup(4))
MESSAGES = (*TWO_AND_FOUR, Setup(8))
CASES: dict[str, tuple[Measure, Scope]] = {
    "launch": (launch.measure, Scope((Setup(1), *MESSAGES))),
    "ring": (ring.measure, Scope(MESSAGES)),
    "collectives": (collectives.measure, Scope(MESSAGES, rounds=20)),
    "ddp": (ddp.measure, Scope(TWO_AND_FOUR)),
    "zero": (zero.measure, Scope(TWO_AND_FOUR)),
    "fsdp": (fsdp.measure, Scope(TWO_AND_FOUR, widths=(32, 64, 128, 256), batches=(1, 2, 4, 8))),
    "plan": (plan.measure, Scope(TWO_AND_FOUR, rounds=9, widths=(64, 128, 256), tries=1)),
    "limit": (memory_limit.measure, Scope((Setup(4),))),
    "local_sgd": (local_sgd.measure, Scope((Setup(4),), rounds=10, width=64)),
}
CASE_SECONDS = 2 * 60 * 60  # for a launch that hangs; it takes a few minutes
GPU_SECTIONS = [
    Section("environment", environment.measure, 10),
    Section("correctness", checked_collectives.measure, 60),
    Section("stream order", stream_order.measure, 25),
    Section("several GPUs", multi_gpu.measure, 45),
    Section("copy bandwidth", copy_bandwidth.measure, 15),
    Section("small job", small_job.measure, 75),
    Section("split layers", split.measure, 30),
    Section("collectives", collectives.measure, 55),
    Section("ddp", ddp.measure, 45),
    Section("zero", zero.measure, 45),
    Section("fsdp", fsdp.measure, 45),
]
GPU_RECORDS = {
    "gpu": GPU_SECTIONS,
    "gpu_rates": [GPU_SECTIONS[0], Section("rates", rates.measure, 240)],
    "gpu_grid": [GPU_SECTIONS[0], Section("grid", grid.measure, 240)],
    "gpu_experts": [GPU_SECTIONS[0], Section("experts", experts.measure, 85)],
    "gpu_ahead": [GPU_SECTIONS[0], Section("ahead", ahead.measure, 60)],
    "gpu_suites": [
        GPU_SECTIONS[0],
        Section("trace", trace.measure, 40),
        Section("suites", suites.measure, 230),
    ],
}


def main(arguments: Sequence[str]) -> int:
    """Measure and record; the exit status."""
    asked = [f"gpu_{name}" for name in arguments[1:]] or ["gpu"]
    if arguments[:1] == ["gpu"] and GPU_RECORDS.keys() >= {*asked}:
        gpus = torch.cuda.device_count()
        if not gpus:
            print("no CUDA device: nothing to measure")
            return 2
        return max([run_sections(on_gpus(gpus), name) for name in asked])
    if "--help" in arguments:
        print(__doc__, f"CASE: {', '.join(CASES)}", sep="\n")
        return 0
    if unknown := sorted(set(arguments) - set(CASES)):
        there_are = [*CASES, *(each.replace("_", " ") for each in GPU_RECORDS)]
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(there_are)}")
        return 2
    failed = 0
    for name in arguments or CASES:
        measure, scope = CASES[name]
        print(f"{name} ...")
        rows = []
        for row in measure(scope, Clock(CASE_SECONDS)):
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()))
            rows.append(row)
        print(f"wrote {record(name, rows, f'python -m benchmarks {name}')}")
        failed += not keeps_its_promises(name, rows)
    return 1 if failed else 0


def keeps_its_promises(name: str, rows: list[Row]) -> bool:
    """Whether a record shows all that the course promises of it; prints what it does not."""
    sentences = broken(name, rows)
    for sentence in sentences:
        print(f"the record does not show what the course promises: {sentence}")
    return not sentences


def run_sections(scope: Scope, name: str = "gpu") -> int:
    """All sections of a record; the exit status: 1 if a section failed, or 0."""
    start = time.monotonic()
    command = f"python -m benchmarks.{name.replace('_', ' ')}"
    scope = replace(scope, earlier=earlier(name))
    sections = GPU_RECORDS[name]
    rows, failed = run(sections, scope, keep=lambda rows: record(name, rows, command))
    took = {"section": "command", "seconds": round(time.monotonic() - start, 1), "failed": failed}
    path = record(name, [*rows, took], command)
    keeps_its_promises(name, [*rows, took])
    for row in rows:
        if "skipped" in row:
            print(f"skipped: {row['review']} {row['check']}: {row['skipped']}")
    print(f"wrote {path} after {took['seconds']} s; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
