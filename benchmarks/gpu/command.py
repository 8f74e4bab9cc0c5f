"""The command: all sections, one record. To look at something more, add a section to `ALL`."""

import time

import torch

from benchmarks.gpu import correct, ddp, fsdp, limits, order, there, times, zero
from benchmarks.gpu.section import Section, run
from benchmarks.gpu.worlds import Where, of_gpus
from benchmarks.record import record

ALL = [
    Section("there", there.measure, 20),
    Section("correct", correct.measure, 110),
    Section("order", order.measure, 40),
    Section("limits", limits.measure, 20),
    Section("times", times.measure, 80),
    Section("ddp", ddp.measure, 60),
    Section("zero", zero.measure, 60),
    Section("fsdp", fsdp.measure, 60),
]


def main(where: Where | None = None) -> int:
    """Measure and record; the exit status: 0, 1 if a section failed, 2 if there is no GPU.

    Args:
        where: what to measure on; None: the GPUs that are there.
    """
    if where is None:
        gpus = torch.cuda.device_count()
        if not gpus:
            print("no CUDA device: nothing to measure")
            return 2
        where = of_gpus(gpus)
    start = time.monotonic()
    rows, failed = run(ALL, where)
    took = {"section": "command", "seconds": round(time.monotonic() - start, 1), "failed": failed}
    path = record("gpu", [*rows, took], command="python -m benchmarks.gpu")
    print(f"wrote {path} after {took['seconds']} s; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0
