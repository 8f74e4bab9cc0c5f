"""What the cases for the CPU alone measure, on few ranks; nothing depends on the clock."""

from itertools import product
from typing import Any

import pytest
import torch
from torch.nn.utils import vector_to_parameters

import minidist
from benchmarks import __main__ as command
from benchmarks.cases import launch, local_sgd, plan, ring
from benchmarks.cases import memory_limit as limit
from benchmarks.harness import turns
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, Measure
from benchmarks.harness.setups import Scope, Setup
from course.chapters.keep_going.curves import learned, loss_of
from course.training.rounds import Work, replayed

MIB = 1 << 20


SMALL = Scope((Setup(2),), rounds=2, message_bytes=(4096,), width=16, tries=1)


def rows_of(measure: Measure) -> list[Row]:
    return list(measure(SMALL, Clock(280)))


def test_what_is_no_case_and_no_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["no such case"]) == command.main(["gpu", "rate"]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("unknown: no such case; there are launch, ring")
    assert said[1].startswith("unknown: gpu, rate; there are ")


def test_the_first_launch_is_timed_and_later_ones() -> None:
    first, later = rows_of(launch.measure)
    assert (first["what"], first["ranks"]) == ("first launch", launch.FIRST)
    assert (later["ranks"], later["runs"]) == (2, 2)
    assert 0 < later["seconds"] <= later["worst"]


def test_the_ring_is_timed_against_the_backend_in_each_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring, "LAUNCHES", 2)
    (row,) = rows_of(ring.measure)
    assert (row["ranks"], row["bytes"], row["rounds"]) == (2, 4096, 2)
    ratios = [a / b for a, b in zip(row["ring_ms"], row["native_ms"], strict=True)]
    assert row["ratio"] == pytest.approx(sum(ratios) / 2, rel=2e-3)


def test_quartiles_of_two_turns_lie_between_them() -> None:
    ranks = [[(0.0, 1.0), (2.0, 12.0)], [(0.5, 2.0), (2.0, 3.0)]]  # 2 s, and 10 s
    of_ranks = [turns.Turns(2, {"way": intervals}) for intervals in ranks]
    assert turns.quartiles(of_ranks) == {"way": [2.0, 3.0, 4.0]}


def test_a_plan_is_recorded_beside_what_is_measured() -> None:
    machine, *rows = rows_of(plan.measure)
    assert machine["what"] == "machine"
    assert machine["copy_gb_per_second"] > 0 < machine["training_gflops"]
    assert [(row["link"], row["way"]) for row in rows] == list(product(plan.LINKS, plan.STRATEGIES))
    for row in rows:
        assert row["sent_bytes"] == row["predicted_sent_bytes"], "to the byte"
        assert (row["sent_bytes"] > 0) == (row["way"] != "single")
        assert row["ms"] > 0 < row["predicted_ms"]
        assert row["peak_bytes"] > 0 < row["predicted_peak_bytes"]


def test_losses_are_recorded_over_what_a_rank_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sgd, "STEPS", 4)
    monkeypatch.setattr(local_sgd, "WAYS", [("DDP", 1, (1.0, 0.0)), ("DiLoCo", 2, (0.7, 0.9))])
    ddp, rounds = rows_of(local_sgd.measure)
    assert ddp["steps"] == rounds["steps"] == [0, 4, 8]
    assert ddp["sent_bytes"] == [0, *(4 * n * ddp["parameters"] for n in (4, 8))]
    assert [2 * sent for sent in rounds["sent_bytes"]] == ddp["sent_bytes"]
    assert ddp["loss"][0] == rounds["loss"][0] > max(ddp["loss"][-1], rounds["loss"][-1])


def test_a_curve_is_that_of_one_process_that_plays_all_ranks() -> None:
    work = Work(width=16, every=2, outer=(0.7, 0.5))
    (_, *points), _ = minidist.launch(learned, 2, work, "DiLoCo", 6, 2)
    model, right = work.model(), []
    for weights in replayed(work, [[0, 1]] * 3):
        vector_to_parameters(weights, model.parameters())
        right.append(loss_of(work, model))
    assert [point.loss for point in points] == pytest.approx(right, rel=1e-6)
    plain = work._replace(outer=(1.0, 0.0))
    both = [minidist.launch(learned, 2, plain, way, 6, 2)[0] for way in ("averages", "DiLoCo")]
    losses = [[point.loss for point in each] for each in both]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# The limit


def test_the_largest_number_that_fits_is_found_from_any_guess() -> None:
    for answer, guess in product((0, 1, 2, 7, 8, 9, 40), (0, 1, 8, 30)):
        asked: list[int] = []

        def fits(number: int, answer: int = answer, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number <= answer

        case = f"{answer} from {guess}: {asked}"
        assert limit.most(fits, guess) == answer, case
        assert min(asked) >= 1, case
        assert len(set(asked)) == len(asked), f"each is tried once: {case}"
        assert guess != answer or not answer or sorted(asked) == [answer, answer + 1], case


def allocate() -> list[Any]:
    limit.libc.mallopt(limit.M_MMAP_THRESHOLD, limit.OWN_MAPPING)
    limit.restrict(8 * MIB)
    before = limit.taken()
    held = torch.empty(6 * MIB, dtype=torch.uint8)
    within = limit.taken() - before
    try:
        torch.empty(3 * MIB, dtype=torch.uint8)
    except RuntimeError as error:
        return [within, len(held), str(error)]
    return [within, len(held), "nothing was refused"]


def test_what_goes_beyond_the_limit_is_refused_with_words_that_are_known() -> None:
    ((within, _, error),) = minidist.launch(allocate, 1, device="cpu")
    assert 6 * MIB <= within < 7 * MIB
    assert any(words in error for words in limit.NO_MEMORY)


def test_a_model_that_is_too_deep_does_not_fit() -> None:
    small = 12 * MIB
    guess = limit.deepest(small, "fsdp", False)
    assert guess > limit.deepest(small, "ddp", False) >= 1
    assert limit.fits(small, "fsdp", False, 1)
    assert not limit.fits(small, "fsdp", False, 4 * guess)


def test_a_failure_that_is_not_for_want_of_memory_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise minidist.RankError("rank 1 raised ValueError: something else", [1])

    monkeypatch.setattr(minidist, "launch", breaks)
    with pytest.raises(minidist.RankError, match="something else"):
        limit.fits(MIB, "ddp", False, 1)
