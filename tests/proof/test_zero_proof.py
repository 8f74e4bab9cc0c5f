"""ZeRO trains as one process on the whole batch would, and as torch's ZeroRedundancyOptimizer does.

Each way to shard trains 30 steps on every number of ranks, 1 to 4, gradients summed over one or two
backwards. One launch runs all cases of one number of ranks.
"""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from tests.proof.cases import (
    TASKS,
    WAYS,
    Case,
    Made,
    cases,
    complaints,
    network,
    prove,
    train,
    train_alone,
    ways_of,
    zero,
)
from tests.proof.ddp_cases import Pool, pool
from tests.proof.mutants import FAULTS, faults

RANKS = [1, 2, 3, 4]
KINDS = ["zero", "fsdp"]


@pytest.mark.parametrize("ranks", RANKS)
def test_zero_trains_as_one_process_and_as_torch_s(ranks: int) -> None:
    found = prove(ranks, cases(ways_of("zero", ranks), ranks))
    assert {case: said for case, said in found.items() if said} == {}


def test_the_cases_cover_what_they_say() -> None:
    every = [case for r in RANKS for kind in KINDS for case in cases(ways_of(kind, r), r)]
    fields = {"comm": {"ours", "native"}, "cap": {5e-3, 25}, "micro": {1, 2}, "task": set(TASKS)}
    for way in {case.way.removesuffix(", no prefetch") for case in every}:
        mine = [case for case in every if case.way.startswith(way)]
        for field, values in fields.items():
            assert {getattr(case, field) for case in mine} == values, (way, field)
    assert {case.way for case in every} == set(WAYS)
    for kind, quiet in itertools.product(KINDS, (True, False)):
        assert any(c.quiet == quiet and c.micro == 2 for c in every if c.way.startswith(kind))
    for one, other in itertools.combinations(["model", "optimizer", "dtype"], 2):
        assert len({(getattr(task, one), getattr(task, other)) for task in TASKS}) == 4


def test_nothing_divides_the_odd_model() -> None:
    net = network(TASKS[0], 0, 0)
    of_blocks = [sum(p.numel() for p in block.parameters()) for block in net.blocks]
    everything = sum(p.numel() for p in net.parameters())
    sizes = [*of_blocks, everything, everything - sum(of_blocks)]
    sizes += [p.numel() for p in net.parameters()] + [len(p) for p in net.parameters()]
    assert all(size % ranks for size in sizes for ranks in (2, 3, 4))
    assert min(sizes) < 2


# ---- that the proof would notice ----


def test_the_proof_notices_what_is_broken() -> None:
    for way, kind, said in faults(3, ["zero 1", "zero 2"], zero):
        assert bool(said) == bool(FAULTS[kind]), (way, kind, said)
        assert not said or any(FAULTS[kind] in each for each in said), (way, kind, said)


def test_the_proof_notices_other_weights_at_the_start() -> None:
    def never_shared(net, case, comm) -> Made:  # type: ignore[no-untyped-def]
        torch.manual_seed(dist.get_rank())
        made = zero(net, case, comm)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.01 * dist.get_rank())
        return made

    def run(samples: Pool) -> Any:
        return train(Case(TASKS[0], "zero 2", steps=3), samples, never_shared)

    alone = train_alone(TASKS[0], 3)
    known = {(name, TASKS[0]): alone for name in ("one process", "torch's zero")}
    said = list(complaints(Case(TASKS[0], "zero 2"), minidist.launch(run, 2, pool()), known))
    assert any("the losses, against one process" in each for each in said)
