"""Suites of the tests that compare with one process, on GPUs: in fp64, fp32, autocast and bf16.

They are written for a CPU; here what they make lies on the rank's GPU, and what they compile the
inductor compiles. They need pytest.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

import minidist
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup
from from_scratch import context, refusals

LONGEST = 45.0  # seconds for one suite, of which none takes half in four ranks
SHOWN = 4  # wrong cases of each suite that are recorded
LESSON = "tests.from_scratch."


class Suite(NamedTuple):
    """Tests whose `all_off` takes what is called `given`, and returns what is wrong.

    Attributes:
        cases: what is counted.
        ranks: on which it runs; nothing: on any.
    """

    module: str
    given: tuple[str, ...]
    cases: tuple[str, ...]
    ranks: tuple[int, ...] = ()


FEW, BOTH = ("FEW",), ("FEW", "MOST")
SUITES = {
    "data parallel": Suite(LESSON + "test_parity", FEW, FEW),
    "pipeline": Suite(LESSON + "test_pipeline_parity", FEW, FEW),
    "tensor and context": Suite(LESSON + "test_split_parity", (), ("BLOCKS", "SEQUENCES")),
    "experts": Suite(LESSON + "test_expert_parity", (), ("CASES",)),
    "local SGD": Suite(LESSON + "test_local_sgd_parity", FEW, FEW),
    "mesh, pipelines": Suite(LESSON + "mesh.test_pipelines", ("piped", *BOTH), BOTH, (4,)),
    "mesh, layers": Suite(LESSON + "mesh.test_split_layers", ("cut", *BOTH), BOTH, (4,)),
    "mesh, sequences": Suite(LESSON + "mesh.test_sequences", ("ringed", *BOTH), BOTH, (4,)),
    "mesh, experts": Suite(LESSON + "mesh.test_experts", ("mixed", *BOTH), BOTH, (4,)),
    "mesh, rounds": Suite(LESSON + "mesh.test_rounds", ("rounds", *BOTH), BOTH, (4,)),
    "Muon": Suite("tests.support.muon", (), ("OPTIONS",)),
    "torch.compile": Suite("tests.fsdp.test_compile", (), ("FORMS",)),
}


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each suite: how many cases, and which are not as in one process.

    Raises:
        AssertionError: after the last row, if anything was wrong.
    """
    bad = []
    run = {
        name: each for name, each in SUITES.items() if setup.ranks in (each.ranks or [setup.ranks])
    }
    for name, suite in run.items():
        seconds = min(clock.left(), LONGEST)
        row: Row = {"suite": name}
        try:
            of_ranks = setup.launch(on_rank, suite, setup.shared, timeout=seconds)
            row |= of_ranks[0] | {"wrong": [each for found in of_ranks for each in found["wrong"]]}
        except minidist.RankError as error:
            row["wrong"] = [str(error)]
        bad += row["wrong"]
        yield row | {"wrong": row["wrong"][:SHOWN]}
    assert not bad, f"{len(bad)} wrong, such as {bad[0]}"


def on_rank(suite: Suite, shared: bool) -> Row:
    """On a rank: the number of cases, those that are wrong here, and seconds."""
    device, start = minidist.device(), time.perf_counter()
    tests: Any = import_module(suite.module)
    if hasattr(tests, "BACKEND") and device.type == "cuda":
        tests.BACKEND = "inductor"
    with ExitStack() as changed:
        _here(device, changed)
        if shared:
            _through_host_memory(changed)
        wrong = tests.all_off(*(getattr(tests, name) for name in suite.given))
    wrong = [": ".join(item) for item in wrong.items()] if isinstance(wrong, dict) else wrong
    cases = sum(len(getattr(tests, name)) for name in suite.cases)
    return {"cases": cases, "wrong": wrong, "seconds": round(time.perf_counter() - start, 1)}


def _here(device: torch.device, changed: ExitStack) -> None:
    """Let tensors, random numbers and autocast be this device's."""
    autocast = torch.autocast

    class Drawn(torch.Generator):
        def __new__(cls) -> "Drawn":
            return super().__new__(cls, device=device)

    def cast(_: str, dtype: torch.dtype = torch.bfloat16, **how: Any) -> Any:
        return autocast(device.type, dtype, **how)

    changed.enter_context(device)
    changed.enter_context(patch.object(torch, "autocast", cast))
    changed.enter_context(patch.object(torch, "Generator", Drawn))


def _through_host_memory(changed: ExitStack) -> None:
    """Let torch's `isend` and `irecv` copy, which Gloo does not, and the lesson allow it."""
    isend, irecv = dist.isend, dist.irecv

    def send(tensor: torch.Tensor, *where: Any, **how: Any) -> Any:
        return isend(tensor.cpu(), *where, **how)

    def receive(tensor: torch.Tensor, *where: Any, **how: Any) -> Any:
        host = torch.empty_like(tensor, device="cpu")
        return Arrival(irecv(host, *where, **how), host, tensor)

    for module in (dist, dist.distributed_c10d):
        changed.enter_context(patch.multiple(module, isend=send, irecv=receive))
    for lesson in (refusals, context):
        changed.enter_context(patch.object(lesson, "check_sender", lambda *_: None))


class Arrival(NamedTuple):
    """A message that comes to host memory first."""

    work: Any
    host: torch.Tensor
    tensor: torch.Tensor

    def wait(self) -> None:
        """Wait for it, and copy it to its place."""
        self.work.wait()
        self.tensor.copy_(self.host)
