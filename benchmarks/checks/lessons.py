"""The lesson's own suites, which compare it with one process, on GPUs: in fp64, autocast and bf16.

They are written for a CPU; here what they make lies on the rank's GPU. They need pytest.
"""

import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

import minidist
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup

SHOWN = 4  # wrong cases of each suite that are recorded
SUITES = {
    "data parallel": ("test_parity", "FEW"),
    "pipeline": ("test_pipeline_parity", "FEW"),
    "experts": ("test_expert_parity", ""),
    "local SGD": ("test_local_sgd_parity", "FEW"),
}


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each suite: how many cases, and which are not as in one process.

    Raises:
        AssertionError: after the last row, if anything was wrong.
    """
    of_ranks = setup.launch(on_rank, timeout=clock.left())
    bad = []
    for suite in SUITES:
        wrong = [each for found in of_ranks for each in found[suite]["wrong"]]
        yield {"suite": suite, **of_ranks[0][suite], "wrong": wrong[:SHOWN]}
        bad += wrong
    assert not bad, f"{len(bad)} wrong, such as {bad[0]}"


def on_rank() -> dict[str, Row]:
    """On a rank: of each suite the number of cases, those that are wrong, and seconds."""
    device, autocast = minidist.device(), torch.autocast

    def here(_: str, dtype: torch.dtype = torch.bfloat16, **how: Any) -> Any:
        return autocast(device.type, dtype, **how)

    found = {}
    drawn = partial(torch.Generator, device=device)
    with device, patch.object(torch, "autocast", here), patch.object(torch, "Generator", drawn):
        for suite, (module, few) in SUITES.items():
            start = time.perf_counter()
            tests: Any = import_module(f"tests.from_scratch.{module}")
            cases = getattr(tests, few) if few else tests.CASES
            wrong = tests.all_off(*([cases] if few else []))
            wrong = wrong if isinstance(wrong, list) else [": ".join(i) for i in wrong.items()]
            seconds = round(time.perf_counter() - start, 1)
            found[suite] = {"cases": len(cases), "wrong": wrong, "seconds": seconds}
    return found
