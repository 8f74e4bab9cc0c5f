"""DDP, ZeRO and FSDP train as one process on the whole batch would, and as torch's classes do.

Each model trains 50 steps under DDP, each way to shard 20, on every number of ranks (`long_cases`);
and every two options that may meet do so in one of the shorter runs (`covering_cases`). A launch
runs all cases of one number of ranks, since a launch costs more than a case.
"""

import itertools

import pytest

from tests.proof.cases import (
    DDP,
    FACTORS,
    FSDP,
    ZERO,
    Case,
    covering_cases,
    long_cases,
    made,
    network,
    pairs,
    pool,
    possible_pairs,
    prove,
)
from tests.proof.mutants import MUTANTS

CASES = [*long_cases(), *covering_cases()]


@pytest.mark.parametrize("ranks", FACTORS["ranks"])
@pytest.mark.parametrize("ways", [DDP, ZERO, FSDP], ids=["ddp", "zero", "fsdp"])
def test_training_is_that_of_one_process_and_of_torch_s_class(ways: list[str], ranks: int) -> None:
    cases = [case for case in CASES if case.ranks == ranks and case.way in ways]
    found = prove(ranks, {str(case): (case, made) for case in cases})
    assert {case: said[:3] for case, said in found.items() if said} == {}


def test_the_cases_cover_what_they_say() -> None:
    rows = [{name: getattr(case, name) for name in FACTORS} for case in covering_cases()]
    assert set().union(*map(pairs, rows)) == possible_pairs()
    long = long_cases()
    models, ranks, ways = FACTORS["model"], FACTORS["ranks"], DDP + ZERO + FSDP
    of_ddp = [case for case in long if case.way in DDP]
    assert {(c.model, c.ranks) for c in of_ddp} == set(itertools.product(models[1:], ranks))
    assert {c.steps for c in of_ddp} == {50}
    assert {(c.way, c.ranks) for c in long if c.way in ways} == set(itertools.product(ways, ranks))
    assert {c.way for c in long} == set(FACTORS["way"])


def test_nothing_divides_the_odd_model() -> None:
    net = network(Case("one process", 1), 0, pool())
    of_blocks = [sum(p.numel() for p in block.parameters()) for block in net.blocks]
    everything = sum(p.numel() for p in net.parameters())
    sizes = [*of_blocks, everything, everything - sum(of_blocks)]
    sizes += [p.numel() for p in net.parameters()] + [len(p) for p in net.parameters()]
    assert all(size % ranks for size in sizes for ranks in (2, 3, 4))
    assert min(sizes) < 2


def test_the_proof_notices_what_is_broken() -> None:
    found = prove(3, {name: (case, make) for name, (case, make, _) in MUTANTS.items()})
    for name, said in found.items():
        noticed = MUTANTS[name][2]
        assert bool(said) == bool(noticed), (name, said)
        assert not said or any(noticed in each for each in said), (name, said)
