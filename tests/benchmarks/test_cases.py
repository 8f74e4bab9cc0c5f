"""The benchmarks of ZeRO and FSDP do what they say; on tiny models, and not by the clock."""

from typing import Any

import pytest
import torch

import minidist
from benchmarks import fsdp, limit, small_gpt, turns, zero
from benchmarks.record import Row
from tests.benchmarks.test_records_zero import FSDP, ZERO

MIB = 1 << 20


def of(rows: list[Row], what: str) -> list[Row]:
    return [row for row in rows if row["what"] == what]


@pytest.fixture(scope="module")
def zero_rows() -> list[Row]:
    return zero.measure(rounds=2, ranks=(2,), width=16, tries=1)


@pytest.fixture(scope="module")
def fsdp_rows() -> list[Row]:
    return fsdp.measure(rounds=2, ranks=(2,), width=16, widths=(16, 32), batches=(1, 8), tries=1)


@pytest.mark.parametrize("name", ["zero_rows", "fsdp_rows"])
def test_every_way_s_steps_are_timed_against_torch_s(
    name: str, request: pytest.FixtureRequest
) -> None:
    rows = request.getfixturevalue(name)
    steps = {row["way"]: row for row in of(rows, "step")}
    assert list(steps) == {"zero_rows": ZERO, "fsdp_rows": FSDP}[name]
    for row in steps.values():
        low, middle, high = row["ms"]
        assert 0 < low <= middle <= high
        assert row["ratio"] == pytest.approx(middle / steps["torch"]["ms"][1], abs=0.02)
        assert (row["ranks"], row["rounds"]) == (2, 2)


def test_what_a_rank_holds_is_what_is_predicted(zero_rows: list[Row], fsdp_rows: list[Row]) -> None:
    rows = of(zero_rows, "memory") + of(fsdp_rows, "memory")
    assert all(0 < row["held_bytes"] < row["peak_bytes"] for row in rows)
    told = [row for row in rows if "predicted_held_bytes" in row]
    assert len(told) == 3 + 5
    for row in told:  # a thread may still hold the last message's tensors
        assert 0.95 < row["held_bytes"] / row["predicted_held_bytes"] < 1.4
        assert row["predicted_held_bytes"] < row["predicted_peak_bytes"]


def test_ddp_and_fsdp_are_timed_for_models_of_some_sizes(fsdp_rows: list[Row]) -> None:
    rows = of(fsdp_rows, "size")
    assert [(row["width"], row["way"]) for row in rows] == [
        (width, way) for width in (16, 32) for way in ("ddp", "fsdp")
    ]
    assert rows[0]["parameters"] < rows[2]["parameters"]
    assert all(row["ratio"] == 1 for row in rows if row["way"] == "ddp")


def test_within_a_limit_the_largest_batch_that_fits_is_found(fsdp_rows: list[Row]) -> None:
    rows = of(fsdp_rows, "limit")
    assert [row["way"] for row in rows] == ["ddp", "fsdp"] * 3
    ddp = [row["batch"] for row in rows if row["way"] == "ddp"]
    assert ddp == [8, 1, 0], "all of it, the least, and nothing but the state"
    for row in rows:
        assert row["peak"] <= row["limit"]
        assert bool(row["batch"]) == bool(row["peak"]) == bool(row["tokens_per_second"])


def test_quartiles_of_two_turns_lie_between_them() -> None:
    ranks = [[(0.0, 1.0), (2.0, 12.0)], [(0.5, 2.0), (2.0, 3.0)]]  # 2 s, and 10 s
    assert turns.quartiles(ranks, calls=2) == [2.0, 3.0, 4.0]


def seen(losses: dict[str, list[float]]) -> small_gpt.Seen:
    return {}, losses


def test_ways_that_do_not_train_alike_are_named() -> None:
    same = {"torch": [2.0, 1.0], "ours": [2.0, 1.0004], "alone": [2.0, 1.5]}
    small_gpt.alike([seen(same)], "torch", but=["alone"])
    with pytest.raises(AssertionError, match="rank 0: alone: losses"):
        small_gpt.alike([seen(same)], "torch")
    for wrong in ([2.0, 1.1], [2.0, float("nan")]):
        with pytest.raises(AssertionError, match="rank 1: ours: losses"):
            small_gpt.alike([seen(same), seen({**same, "ours": wrong})], "torch", but=["alone"])


# The limit


@pytest.mark.parametrize("answer", [0, 1, 2, 7, 8, 9, 40])
@pytest.mark.parametrize("guess", [0, 1, 8, 30])
def test_the_largest_number_that_fits_is_found_from_any_guess(answer: int, guess: int) -> None:
    asked: list[int] = []

    def fits(number: int) -> bool:
        assert number >= 1
        asked.append(number)
        return number <= answer

    assert limit.most(fits, guess) == answer
    assert len(set(asked)) == len(asked), "each is tried once"
    if guess == answer > 0:
        assert sorted(asked) == [answer, answer + 1]


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
    ((within, _, told),) = minidist.launch(allocate, 1, device="cpu")
    assert 6 * MIB <= within < 7 * MIB
    assert any(words in told for words in limit.NO_MEMORY)


def test_a_model_that_is_too_deep_does_not_fit() -> None:
    small = 12 * MIB
    guess = limit.deepest(small, "zero3", False)
    assert guess > limit.deepest(small, "ddp", False) >= 1
    assert limit.fits(small, "zero3", False, 1)
    assert not limit.fits(small, "zero3", False, 4 * guess)


def test_a_failure_that_is_not_for_want_of_memory_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise minidist.RankError("rank 1 raised ValueError: something else", [1])

    monkeypatch.setattr(minidist, "launch", breaks)
    with pytest.raises(minidist.RankError, match="something else"):
        limit.fits(MIB, "ddp", False, 1)


def test_blocks_that_run_again_keep_less_and_fit_deeper() -> None:
    for strategy in limit.WAYS:
        plain, again = (limit.deepest(limit.LIMIT, strategy, each) for each in (False, True))
        assert again > plain
