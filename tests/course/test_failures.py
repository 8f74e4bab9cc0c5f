"""Each failure of the lab shows as it should, in minidist and in PyTorch, and its repair works."""

import re
from collections.abc import Callable

import pytest

from course.failures import CASES, Case, Seen, see
from course.failures.case import KITS
from course.failures.dying import hangs_guarded

HANGS = re.escape("(nothing: the ranks hang)\ndiagnose: ")
OURS = r"(minidist\.)?"  # before a call's name
WELL = re.escape("diagnose: no rank waits: each has left every collective that it entered")


def says(pattern: str) -> Callable[[Seen], bool]:
    return lambda seen: re.search(f"^{pattern}", str(seen), re.DOTALL) is not None


def told(pattern: str) -> Callable[[Seen], bool]:
    """By the sentence: what else is seen depends on who is quicker."""
    return lambda seen: re.match(pattern, seen.sentence) is not None


def each(*patterns: str) -> Callable[[Seen], bool]:
    """The values of all ranks, or of rank 0, 1, ..."""

    def fits(seen: Seen) -> bool:
        values = seen.values or []
        wanted = patterns * len(values) if len(patterns) == 1 else patterns
        return len(values) == len(wanted) and all(map(re.fullmatch, wanted, map(str, values)))

    return fits


def waits_for_the_straggler(seen: Seen) -> bool:
    waited = [float(re.findall(r"\d+", value)[0]) for value in seen.values or []]
    return len(waited) == 3 and waited[0] >= 100 <= waited[2]


def nothing_in_common(seen: Seen) -> bool:
    assert seen.values
    return len(set(seen.values)) == 4 and all("spread 0.2" in value for value in seen.values)


def learns(low: float, high: float) -> Callable[[Seen], bool]:
    return lambda seen: all(
        low < float(re.findall(r"[\d.]+", value)[0]) < high for value in seen.values or [""]
    )


MISMATCH = "ranks 0, 1, 2 raised minidist.errors.MismatchError: .* the ranks disagree on "
ONE_RANK_S_CHECK = r"parameter '1\.bias' on rank 1 is not as on ranks 0, 2"
HALF = "RuntimeError: PytorchStreamReader failed reading zip archive: .*"
SAME, OTHER = r"(\[.*\]) then \1 then \1", r"(\[.*\]) then (?!\1)(\[.*\]) then (?!\1|\2)\[.*\]"
# How it fails in PyTorch and in minidist, and what it comes to when it is repaired.
EXPECTED: dict[str, tuple[Callable[[Seen], bool], Callable[[Seen], bool], Callable[..., bool]]] = {
    "A rank dies": (
        says("rank 1 was killed by SIGKILL\ndiagnose: rank 1 is gone after all_reduce #1"),
        says("rank 1 was killed by SIGKILL\ndiagnose: rank 1 is gone after minidist.all_reduce #1"),
        bool,
    ),
    "A rank hangs": (
        says(HANGS + r"rank 1 never came to all_reduce #2: it is in stands_still at dying.py:\d+$"),
        says(HANGS + r"rank 1 never came to minidist.all_reduce #2: it is in stands_still at "),
        bool,
    ),
    "A rank runs out of memory": (
        says("rank 1 raised RuntimeError: .*allocate 536870912 bytes.*diagnose: rank 1 raised Run"),
        says("rank 1 raised RuntimeError: .*allocate 536870912 bytes.*diagnose: rank 1 raised Run"),
        each("1 pieces", "8 pieces"),
    ),
    "A straggler": (waits_for_the_straggler, waits_for_the_straggler, bool),
    "Collectives in another order": (
        says(HANGS + "rank 0 is at all_reduce #1, the others at broadcast #1"),
        says(MISMATCH + "the call: rank 0 passed all_reduce; ranks 1, 2 passed broadcast"),
        each("3"),
    ),
    "Shapes that differ": (
        told(r"at all_reduce #1, rank 1 is with float32 \(3,\), the others with float32 \(4,\)"),
        says(MISMATCH + r"tensor's shape: rank 1 passed \(3,\); ranks 0, 2 passed \(4,\)"),
        each("1.0 over 11 samples"),
    ),
    "Dtypes that differ": (
        told(r"at all_reduce #1, rank 1 is with float64 \(4,\), "),
        says(MISMATCH + "tensor's dtype: rank 1 passed torch.float64"),
        each(re.escape("[3.0, 3.0, 3.0, 3.0]")),
    ),
    "A rank with fewer batches": (
        says(HANGS + "rank 1 never came to all_reduce #.: it has returned, after all_reduce #"),
        says(HANGS + r"rank 1 never came to .*backward after 3 forwards, 2 backwards #\d+: it has"),
        each("3 batches", "2 batches"),
    ),
    "A parameter skipped on one rank": (
        says("rank 1 raised RuntimeError: Expected to have finished reduction.*diagnose: rank 1 r"),
        says("rank 1 raised RuntimeError: .*got none for 2: right.weight.*diagnose: rank 1 raised"),
        each(r"gradient of right\.weight: 2\.0"),
    ),
    "set_epoch forgotten": (each(SAME), each(SAME), each(OTHER)),
    "The same seed on every rank": (
        each("drops .* spread 0.50"),
        each("drops .* spread 0.50"),
        nothing_in_common,
    ),
    "A parameter changed on one rank": (
        each(f"checksum .*; {ONE_RANK_S_CHECK}"),
        each(f"checksum .*; {ONE_RANK_S_CHECK}"),
        each("checksum .*; replicas are equal"),
    ),
    "NaN on one rank": (
        each(r"own loss \d.*, weight afterwards nan", "own loss nan, weight afterwards nan"),
        each(r"own loss \d.*, weight afterwards nan", "own loss nan, weight afterwards nan"),
        each(r"own loss \d.*, weight afterwards -0.01", "own loss nan, weight afterwards -0.01"),
    ),
    "The learning rate not scaled": (learns(0.4, 0.6), learns(0.4, 0.6), learns(0.1, 0.3)),
    "The loss not divided under accumulation": (
        each("gradient 6.00; of the whole batch 1.50"),
        each("gradient 6.00; of the whole batch 1.50"),
        each("gradient 1.50; of the whole batch 1.50"),
    ),
    "A checkpoint that every rank writes": (each(HALF), each(HALF), each("found step 5")),
    "An optimizer built before wrapping": (
        each(r"losses (.*), \1, \1; the optimizer holds 0 of the model's parameters"),
        says(r"rank . raised RuntimeError: .*is used as it was before fully_shard. An optimizer"),
        each("losses .*; the optimizer holds 4 of the model's parameters"),
    ),
}


def test_every_failure_is_here() -> None:
    assert list(EXPECTED) == list(CASES)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_fails_as_it_should_and_the_repair_holds(case: Case) -> None:
    *fails, works = EXPECTED[case.name]
    for kit, expected in zip(reversed(KITS), fails, strict=True):
        assert expected(seen := case.see(kit)), f"{kit}: {seen}"
        if case.repaired:
            seen = case.see(kit, repaired=True)
            assert works(seen), f"{kit}, repaired: {seen}"
            assert re.search(WELL, str(seen)), str(seen)


def test_a_monitored_barrier_names_the_rank_that_has_not_come() -> None:
    seen = see(hangs_guarded, "torch", 3)
    assert seen.values
    assert re.search("Ranks? 1 failed to pass monitoredBarrier", seen.values[0]), seen.values
