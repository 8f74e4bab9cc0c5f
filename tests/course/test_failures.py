"""Each failure of the lab shows as it should, in minidist and in PyTorch, and its repair works."""

import re
from collections.abc import Callable

import pytest

from course.chapters.disagree.failures import CASES, Case, Seen
from course.chapters.disagree.failures.case import KITS
from minidist.profiler.spans import COMMUNICATION

Check = Callable[[Seen], bool]
HANGS = re.escape("(nothing: no error, no value, all ranks still run)\ndiagnose: ")
WELL = re.escape("diagnose: no rank waits: each has left every collective that it entered")


def says(pattern: str) -> Check:
    return lambda seen: re.search(f"^{pattern}", str(seen), re.DOTALL) is not None


def told(pattern: str) -> Check:
    """By the sentence: what else is seen depends on who is quicker."""
    return lambda seen: re.match(pattern, seen.sentence) is not None


def each(*patterns: str) -> Check:
    """The values of all ranks, or of rank 0, 1, ..."""

    def fits(seen: Seen) -> bool:
        values = seen.values or []
        wanted = patterns * len(values) if len(patterns) == 1 else patterns
        return len(values) == len(wanted) and all(map(re.fullmatch, wanted, map(str, values)))

    return fits


def waits_for_the_straggler(seen: Seen) -> bool:
    lines = [[span for span in spans if span.lane == COMMUNICATION] for spans in seen.values or []]
    waited = [sum(span.end - span.start for span in spans) for spans in lines]
    return len(waited) == 3 and waited[0] >= 0.1 <= waited[2]


def nothing_in_common(seen: Seen) -> bool:
    assert seen.values
    return len(set(seen.values)) == 4 and all("varies by 0.2" in value for value in seen.values)


def rank_1_s_bias_differs(seen: Seen) -> bool:
    """The checksums of the weight, and of the bias, on each rank."""
    sums = [re.findall(r"1\.(?:weight|bias) (\w+)", value) for value in seen.values or []]
    weights, biases = zip(*sums, strict=True)
    return len({*weights}) == 1 and biases[0] == biases[2] != biases[1]


def ranks_agree(seen: Seen) -> bool:
    return len({*(seen.values or "??")}) == 1


def learns(low: float, high: float) -> Check:
    return lambda seen: all(
        low < float(re.findall(r"[\d.]+", value)[0]) < high for value in seen.values or [""]
    )


MISMATCH = "ranks 0, 1, 2 raised minidist.errors.MismatchError: .* the ranks disagree on "
LATE = r"#2 for [\d.]+ s: it is in next_batch at "
HALF = "RuntimeError: PytorchStreamReader failed reading zip archive: .*"
SAME, OTHER = r"(\[.*\]) then \1 then \1", r"(\[.*\]) then (?!\1)(\[.*\]) then (?!\1|\2)\[.*\]"
# How it fails in PyTorch, in minidist (None: alike), and what it comes to when it is repaired.
EXPECTED: dict[str, tuple[Check, Check | None, Callable[..., bool]]] = {
    "A rank dies": (
        says("rank 1 was killed by SIGKILL\ndiagnose: rank 1 is gone after all_reduce #1"),
        says("rank 1 was killed by SIGKILL\ndiagnose: rank 1 is gone after minidist.all_reduce #1"),
        bool,
    ),
    "A rank runs out of memory": (
        says("rank 1 raised RuntimeError: .*allocate 536870912 bytes.*diagnose: rank 1 raised Run"),
        None,
        each(r"in pieces of \[8\] texts", r"in pieces of \[7, 1\] texts"),
    ),
    "A rank hangs": (
        says(HANGS + "rank 1 has not come to all_reduce " + LATE + r"dying.py:\d+$"),
        says(HANGS + "rank 1 has not come to minidist.all_reduce " + LATE),
        says("rank 1 raised TimeoutError: no batch within 0.5 s"),
    ),
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
    "A straggler": (waits_for_the_straggler, None, bool),
    "A parameter changed on one rank": (rank_1_s_bias_differs, None, ranks_agree),
    "NaN on one rank": (
        each(r"own loss \d.*, weight afterwards nan", "own loss nan, weight afterwards nan"),
        None,
        each(r"own loss \d.*, weight afterwards -0.01", "own loss nan, weight afterwards -0.01"),
    ),
    "A checkpoint that every rank writes": (each(HALF), None, each("found step 5")),
    "set_epoch forgotten": (each(SAME), None, each(OTHER)),
    "The same seed on every rank": (
        each(r"mask (\[.*\])...; the ranks' mean mask varies by 0.50"),
        None,
        nothing_in_common,
    ),
    "The learning rate not scaled": (learns(0.4, 0.6), None, learns(0.1, 0.3)),
    "The loss not divided under accumulation": (
        each("gradient 6.00 after 4 micro-batches"),
        None,
        each("gradient 1.50 after 4 micro-batches"),  # that of the whole batch: (1 + 2) / 2
    ),
    "An optimizer built before wrapping": (
        each(r"losses (.*), \1, \1"),
        says(r"rank . raised RuntimeError: .*is used as it was before fully_shard. An optimizer"),
        each(r"losses (.*), (?!\1)(.*), (?!\1|\2).*"),
    ),
}


def test_every_failure_is_here() -> None:
    assert list(EXPECTED) == list(CASES)


AT_FAULT = {  # in the other cases no rank differs from the others, or none waits
    "A rank dies": 1,
    "A rank runs out of memory": 1,
    "A rank hangs": 1,
    "Collectives in another order": 0,
    "Shapes that differ": 1,
    "Dtypes that differ": 1,
    "A rank with fewer batches": 1,
    "A parameter skipped on one rank": 1,
}


def misjudged(seen: Seen, at_fault: int | None) -> list[str]:
    """Whatever in the lab's box blames another rank, or leaves open whose a stack is."""
    sentence, _, box = seen.report.partition("\n")
    named = [int(rank) for rank in re.findall(r"\branks? (\d+)", sentence)][:1]
    off = [sentence] * (named != ([] if at_fault is None else [at_fault]))
    for line in re.findall(r"^rank \d+ (?:is gone|.*out of memory).*", box, re.MULTILINE):
        off += [line] * (not line.startswith(f"rank {at_fault} "))
    ended = re.findall(r"^rank (\d+) (?!crashed)", box, re.MULTILINE)
    for head in re.findall(r"^(\S.*|)\n  File ", box, re.MULTILINE):
        whose = re.fullmatch(r"ranks? ([\d, ]+):", head)
        off += [f"a stack of {head!r}"] * (not whose or bool({*ended} & {*whose[1].split(", ")}))
    return off


ALIKE = "set_epoch forgotten"  # makes no call of either library


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_fails_as_it_should_and_the_repair_holds(case: Case) -> None:
    in_torch, in_minidist, works = EXPECTED[case.name]
    for kit in KITS[case.name == ALIKE :]:
        expected = in_torch if kit == "torch" else in_minidist or in_torch
        seen = case.see(kit)
        assert expected(seen), f"{kit}: {seen}"
        off = misjudged(seen, AT_FAULT.get(case.name)) if kit == "torch" else []
        assert not off, "\n".join([*off, "in", seen.report])
        told = seen.symptom if kit == "torch" else ""
        assert "get_rank()" not in told, "a traceback must not show who takes another branch"
        if case.repair:
            seen = case.see(kit, repaired=True)
            assert works(seen), f"{kit}, repaired: {seen}"
            assert seen.error or re.search(WELL, str(seen)), str(seen)


def test_a_repair_is_shown_as_the_few_lines_that_change() -> None:
    for case in CASES.values():
        changed = [line for line in case.repair.splitlines() if line[0] in "+-"]
        assert len(changed) <= 11, changed
    unrepaired = [name for name, case in CASES.items() if not case.repair]
    assert unrepaired == ["A rank dies", "A straggler"]
    assert CASES["The learning rate not scaled"].repair.splitlines() == [
        "-return _trained(kit, rate=0.05)",
        "+return _trained(kit, rate=0.05 * dist.get_world_size())",
    ]
