"""Suites of the tests that compare with one process, on GPUs: in fp64, fp32, autocast and bf16.

They are written for a CPU; here what they make lies on the rank's GPU, and what they compile the
inductor compiles. They need pytest.
"""

import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

import minidist
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup

SHOWN = 4  # wrong cases of each suite that are recorded
SUITES = {  # what returns the wrong ones, and of which cases
    "data parallel": ("from_scratch.test_parity", "FEW"),
    "pipeline": ("from_scratch.test_pipeline_parity", "FEW"),
    "experts": ("from_scratch.test_expert_parity", "CASES"),
    "local SGD": ("from_scratch.test_local_sgd_parity", "FEW"),
    "torch.compile": ("fsdp.test_compile", "FORMS"),
}


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each suite: how many cases, and which are not as in one process.

    Raises:
        AssertionError: after the last row, if anything was wrong.
    """
    bad = []
    for done, (suite, where) in enumerate(SUITES.items()):
        seconds = clock.share(len(SUITES) - done).left()
        try:
            of_ranks = setup.launch(on_rank, *where, timeout=seconds)
            wrong = [each for found in of_ranks for each in found.pop("wrong")]
            yield {"suite": suite, **of_ranks[0], "wrong": wrong[:SHOWN]}
        except minidist.RankError as error:
            wrong = [str(error)]
            yield {"suite": suite, "wrong": wrong}
        bad += wrong
    assert not bad, f"{len(bad)} wrong, such as {bad[0]}"


def on_rank(module: str, cases: str) -> Row:
    """On a rank: the number of cases, those that are wrong here, and seconds."""
    device, autocast, start = minidist.device(), torch.autocast, time.perf_counter()

    class Drawn(torch.Generator):
        def __new__(cls) -> "Drawn":
            return super().__new__(cls, device=device)

    def here(_: str, dtype: torch.dtype = torch.bfloat16, **how: Any) -> Any:
        return autocast(device.type, dtype, **how)

    tests: Any = import_module(f"tests.{module}")
    if hasattr(tests, "BACKEND") and device.type == "cuda":
        tests.BACKEND = "inductor"
    each = getattr(tests, cases)
    with device, patch.object(torch, "autocast", here), patch.object(torch, "Generator", Drawn):
        wrong = tests.all_off(*([each] if cases == "FEW" else []))
    wrong = [": ".join(item) for item in wrong.items()] if isinstance(wrong, dict) else wrong
    seconds = round(time.perf_counter() - start, 1)
    return {"cases": len(each), "wrong": wrong, "seconds": seconds}
