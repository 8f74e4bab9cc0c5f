"""DistributedDataParallel trains as one process on the whole batch would, and as torch's does.

Every model trains 50 steps on every number of ranks (`long_cases` says which other options meet
there); and every two options meet in one of the shorter runs (`covering_cases`). A launch runs all
cases of one number of ranks, since a launch costs more than a case.
"""

import itertools
from itertools import chain

import pytest

import minidist
from tests.proof.ddp_cases import (
    FACTORS,
    Case,
    Pool,
    covering_cases,
    long_cases,
    pairs,
    pool,
    prove,
)
from tests.proof.ddp_mutants import MUTANTS

CASES = [*long_cases(), *covering_cases()]


@pytest.mark.parametrize("ranks", FACTORS["ranks"])
def test_ddp_trains_as_one_process_and_as_torch_s(ranks: int) -> None:
    cases = [case for case in CASES if case.ranks == ranks]

    def run(cases: list[Case], samples: Pool) -> list[list[str]]:
        return [prove(case, samples) for case in cases]

    found = minidist.launch(run, ranks, cases, pool(), device="cpu", timeout=200)
    complaints = {
        str(case): list(chain(*ranks)) for case, *ranks in zip(cases, *found, strict=True)
    }
    assert {case: said[:3] for case, said in complaints.items() if said} == {}


def test_the_cases_cover_what_they_say() -> None:
    met = set().union(*(pairs({name: getattr(c, name) for name in FACTORS}) for c in CASES[16:]))
    for one, other in itertools.combinations(FACTORS, 2):
        for x, y in itertools.product(FACTORS[one], FACTORS[other]):
            assert ((one, x), (other, y)) in met
    long = CASES[:16]
    for one, other in itertools.combinations(["model", "ranks", "sync", "comm"], 2):
        assert len({(getattr(c, one), getattr(c, other)) for c in long}) == 16
    assert {c.steps for c in long} == {50}


def test_the_proof_notices_what_is_broken() -> None:
    def run(samples: Pool) -> dict[str, list[str]]:
        return {name: prove(m.case, samples, m.wrap) for name, m in MUTANTS.items()}

    (ranks,) = {mutant.case.ranks for mutant in MUTANTS.values()}
    found = minidist.launch(run, ranks, pool(), device="cpu", timeout=200)
    for name, mutant in MUTANTS.items():
        complaints = [text for each in found for text in each[name]]
        assert bool(mutant.noticed) == bool(complaints), (name, complaints[:3])
        assert all(mutant.noticed in text for text in complaints[:1]), (name, complaints[:3])
