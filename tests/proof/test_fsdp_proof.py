"""FSDP trains as one process on the whole batch would, and as torch's FSDP2 does.

Both layouts, with and without resharding after forward, train 30 steps on every number of ranks, 1
to 4; half of these with prefetch. One launch runs all cases of one number of ranks.
"""

import pytest

from tests.proof.cases import cases, fsdp, prove, ways_of
from tests.proof.mutants import FAULTS, faults


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_fsdp_trains_as_one_process_and_as_torch_s(ranks: int) -> None:
    found = prove(ranks, cases(ways_of("fsdp", ranks), ranks))
    assert {case: said for case, said in found.items() if said} == {}


def test_the_proof_notices_what_is_broken() -> None:
    for way, kind, said in faults(3, ["fsdp dim0", "fsdp flat"], fsdp):
        assert bool(said) == bool(FAULTS[kind]), (way, kind, said)
