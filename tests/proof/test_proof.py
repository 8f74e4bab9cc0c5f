"""DDP, ZeRO and FSDP train as one process on the whole batch would, and as torch's classes do.

Each model under DDP, and each way to shard, trains 20 steps on two ranks and on three
(`long_cases`); and every two options that may meet, the number of ranks among them, do so in one
of the shorter runs (`covering_cases`). A launch runs all cases of one number of ranks.
"""

import pytest

from tests.proof.cases import (
    DDP,
    FACTORS,
    FSDP,
    ZERO,
    covering_cases,
    long_cases,
    made,
    prove,
)
from tests.proof.faulty import MUTANTS

CASES = [*long_cases(), *covering_cases()]


@pytest.mark.claim("C11", "D6", "E1")
@pytest.mark.parametrize("ranks", FACTORS["ranks"])
@pytest.mark.parametrize("ways", [DDP, ZERO, FSDP], ids=["ddp", "zero", "fsdp"])
def test_training_is_that_of_one_process_and_of_torch_s_class(ways: list[str], ranks: int) -> None:
    cases = [case for case in CASES if case.ranks == ranks and case.way in ways]
    found = prove(ranks, {str(case): (case, made) for case in cases})
    assert {case: said[:3] for case, said in found.items() if said} == {}


def test_the_proof_notices_what_is_broken() -> None:
    found = prove(3, {name: (case, make) for name, (case, make, _) in MUTANTS.items()})
    for name, said in found.items():
        noticed = MUTANTS[name][2]
        assert bool(said) == bool(noticed), (name, said)
        assert not said or any(noticed in each for each in said), (name, said)
