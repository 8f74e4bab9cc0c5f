"""The project's graders: wrong files get a diagnosis, right ones are in tests/from_scratch."""

from types import SimpleNamespace
from typing import Any

import pytest

from course.ask.verdict import Verdict, Wrong
from course.project import report, submission
from course.project.messages import Message, check_order
from course.project.milestones import by_name
from from_scratch import ring as right
from tests.course.verdicts import says
from tests.support.by_hand import project as hand


def graded(name: str, answer: Any, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """The verdict on a class; or, for "ring", on functions that stand in ring.py instead."""
    if name == "ring":
        names = by_name("ring").names
        answer = SimpleNamespace(**{each: getattr(right, each) for each in names} | answer)
    real = report.source
    monkeypatch.setattr(
        report, "source", lambda *where: (lambda: answer) if where[0] == "mine" else real(*where)
    )
    return report.grade(name)


WRONG = {
    "ring": [
        ("gathers all", {"all_reduce": hand.gathered}, "all_reduce, 3 ranks: .* 2 messages and"),
        ("two ranks", {"all_reduce": hand.with_the_other}, "3 ranks: the sum of .* is off by"),
        ("these sizes", {"all_reduce": hand.in_equal_chunks}, "2 ranks: the sum of 1 element is"),
        (
            "hangs",
            {"all_reduce": hand.one_by_one},
            r"ring \(all_reduce\) is right over Gloo and would hang on GPUs.*2 ranks wait for each "
            "other: rank 0 for rank 1, to 1; rank 1 for rank 0, to 0.*batch_isend_irecv",
        ),
        ("torch's own", {"all_reduce": hand.by_torch}, "calls torch.distributed's all_reduce"),
        ("torch's own", {"all_reduce": hand.by_minidist}, "calls minidist's collectives"),
        ("torch's own", {"all_reduce": hand.by_functions_of_torch}, "2 ranks: .* 0 of the"),
        ("these sizes", {"all_reduce": hand.in_float32}, "the sum of 1 element is off by .*e-08"),
        ("traffic", {"all_reduce": hand.in_two_rings}, "sends 4 messages and .*; 2 and"),
        ("traffic", {"reduce_scatter": hand.by_an_all_reduce}, "r, 2 ranks: .* 2 messages .* 1"),
        ("input", {"reduce_scatter": hand.overwrites_its_input}, "input afterwards"),
    ],
    "DDP, per parameter": [
        ("two ranks", hand.GathersEach, "together send 14,229,504 bytes .* 9,486,336 are enough"),
        ("memory", hand.KeepsCopies, "holds .* bytes at the peak of a step; .* are enough"),
        ("memory", hand.KeepsArrays, "let the process of a rank grow by .* bytes; .* are enough"),
    ],
    "DDP, flat": [
        ("mistake", hand.Sums, r"On rank \d of 2 three layers, 2 ranks: .* is off by"),
        ("mistake", hand.NotBroadcast, "the mean loss of all ranks in step 1 is off"),
        ("mistake", hand.ForgetsBuffers, "a BatchNorm and a .*, 2 ranks: .* step 1 is off by"),
        ("mistake", hand.FloatsOnly, "a BatchNorm .*, 2 ranks: 0.num_batches_tracked is off by 1 "),
        ("mistake", hand.TrainsFrozen, "NoneType.*Is it the gradient of a frozen parameter"),
        ("two ranks", hand.HalvesOnAnyRanks, "1 rank: .* is off by"),
        ("torch's own", hand.ByTorch, "0 of the 9,486,336 bytes .* went through `comm`"),
        ("torch's own", hand.Minidists, "calls minidist's DistributedDataParallel"),
        ("traffic", hand.OneCallEach, "in 16 calls a step; 1 are enough"),
    ],
    "DDP, bucketed": [("mistake", hand.WaitsAtOnce, "0 times in a step a call is on its way .* 7")],
    "DDP, overlapped": [
        ("mistake", hand.NeverEarly, "7 times in a step .* it could be 14 times"),
        ("mistake", hand.LazyAtTheEnd, "5 of 8 calls are made before backward ends; .* be 8"),
        ("mistake", hand.NotAfresh, "not used in this step"),
        ("order", hand.AsTheyFill, "branches in either order, 2 ranks: the mean loss"),
    ],
    "ZeRO-1": [
        ("traffic", hand.AllReduces, "send 14,229,504 bytes .* 9,486,336 are enough"),
        ("mistake", hand.IgnoresItsClass, "drawn with seed .*, trained by SGD, .* is off by"),
        ("mistake", hand.SumsOfShards, "2 ranks: .* is off by"),
        ("mistake", hand.NeverGathers, "2 ranks: .* is off by"),
        ("memory", hand.KeepsWholeState, "at the peak of a step; .* are enough"),
        ("torch's own", hand.MinidistsZero, "calls minidist's ZeroOptimizer"),
    ],
    "ZeRO-2": [
        ("memory", hand.Stage1, "at the peak of a step; .* are enough|0 times in a step"),
        ("mistake", hand.Waits, "times in a step a call is on its way"),
    ],
    "FSDP": [
        ("gathers all", hand.with_units(hand.GathersWholeGradients), "together send .* are enough"),
        ("mistake", hand.with_units(hand.LocalGradients), "2 ranks: .* is off by"),
        ("memory", hand.with_units(hand.FreesNothing), "at the peak of a step; .* are enough"),
        ("memory", hand.with_units(hand.StaysWhole), "at the peak of a step; .* are enough"),
        ("memory", hand.OneUnit, "at the peak of a step; .* are enough"),
        ("torch's own", hand.MinidistsFSDP, "calls minidist's fully_shard"),
    ],
    "FSDP, prefetch": [
        ("mistake", hand.OldWeights, "a unit that runs before and after another, .* old weights"),
        ("mistake", hand.NoPrefetch, "times in a step a call is on its way"),
        ("order", hand.with_units(hand.NextBeforeOwn), "times in a step a gather is waited for"),
        ("traffic", hand.AsksNothing, r"unit runs twice takes \d+ calls; \d+ are enough. Gather a"),
        ("mistake", hand.OnlyForward, "times in a step a call is on its way"),
    ],
}
CASES = [(name, *row) for name, rows in WRONG.items() for row in rows]


@pytest.mark.parametrize(
    ("name", "answer", "diagnosis"),
    [(name, answer, diagnosis) for name, _, answer, diagnosis in CASES],
    ids=[f"{name}-{place}-{kind}" for place, (name, kind, *_) in enumerate(CASES)],
)
def test_a_wrong_file_is_called_wrong_and_told_why(
    name: str, answer: Any, diagnosis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RANKS", (1, 2, 3) if name == "ring" else (1, 2))
    says(diagnosis, graded(name, answer, monkeypatch))


def test_what_is_right_on_two_ranks_is_tried_on_three(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = graded("DDP, flat", hand.UpToTwoRanks, monkeypatch)
    says("three layers, 3 ranks: .* step 2 is off by", verdict)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ring", {"all_reduce": hand.in_turns}),
        ("DDP, flat", hand.Divided),
        ("ZeRO-1", hand.Blocking),
        ("ZeRO-3", hand.BySlices),
    ],
)
def test_another_right_way_is_right(
    name: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RANKS", (1, 2))
    verdict = graded(name, answer, monkeypatch)
    assert verdict, verdict


def test_a_ring_whose_ranks_all_receive_first_would_hang() -> None:
    orders = [[[Message(sends, 1 - rank, 4)] for sends in (False, True)] for rank in range(2)]
    with pytest.raises(Wrong, match="2 ranks wait for each other: rank 0 for rank 1, from 1"):
        check_order("all_reduce", orders)


def test_nothing_written_is_no_mistake_yet() -> None:
    assert report.grade("ring", "no_such_package").status == "not yet"
    assert report.grade("DDP, flat", "no_such_package").status == "not yet"


def test_a_class_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout in (3, 10, 60):  # on a busy machine ranks may take a while to begin
        monkeypatch.setattr(submission, "TIMEOUT", timeout)
        verdict = graded("DDP, flat", hand.OnRank0Only, monkeypatch)
        if "synchronize" in verdict.text:
            break
    says(r"did not end within .*\(ddp.py, line .*, in synchronize\).*the same calls", verdict)
