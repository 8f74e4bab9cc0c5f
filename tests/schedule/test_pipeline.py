"""Orders of a pipeline: proven by replay, priced by their formulas, refused where they hang."""

from collections.abc import Callable

import pytest

from course.puzzles.catalog import PUZZLES
from course.puzzles.judge import run
from minidist.errors import ScheduleError
from minidist.schedule.pipeline import (
    Order,
    Work,
    blocked,
    bubble,
    gpipe,
    interleaved,
    messages,
    most_held,
    one_f_one_b,
    program,
    replay,
    sequence,
    zero_bubble,
)

SIZES = [(ranks, micro) for ranks in (1, 2, 3, 4, 7, 16) for micro in (1, 2, 3, 8, 32)]


@pytest.mark.claim("G1")
@pytest.mark.parametrize(("ranks", "micro"), SIZES)
def test_the_bubble_of_gpipe_and_of_1f1b_is_the_formulas(ranks: int, micro: int) -> None:
    for order in (gpipe(ranks, micro), one_f_one_b(ranks, micro)):
        for takes in ({"F": 1.0, "B": 2.0}, {"F": 1.0, "B": 1.0}, {"F": 3.0, "B": 4.0}):
            share = (ranks - 1) / (micro + ranks - 1)
            assert bubble(replay(order, takes)) == pytest.approx(share)
        assert messages(order) == 2 * (ranks - 1) * micro
    assert most_held(gpipe(ranks, micro)) == [micro] * ranks
    assert most_held(one_f_one_b(ranks, micro)) == [min(micro, ranks - r) for r in range(ranks)]


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("ranks", "micro"), [(n, m * n) for n in (1, 2, 3, 8) for m in (1, 2, 5)])
def test_interleaving_divides_the_bubble_by_the_chunks(ranks: int, micro: int, chunks: int) -> None:
    order = interleaved(ranks, micro, chunks)
    passes = replay(order, {"F": 1 / chunks, "B": 2 / chunks})
    waits = max(each.end for each in passes) - 3 * micro
    assert waits == pytest.approx(3 * (ranks - 1) / chunks)
    assert bubble(passes) == pytest.approx((ranks - 1) / (chunks * micro + ranks - 1))
    assert messages(order) == (2 * (chunks * ranks - 1) * micro if ranks > 1 else 0)
    ahead = [2 * (ranks - 1 - rank) + (chunks - 1) * ranks for rank in range(ranks)]
    assert most_held(order) == [min(1 + each, chunks * micro) for each in ahead]


@pytest.mark.parametrize(("ranks", "micro"), [(n, m) for n in (1, 2, 4, 8) for m in (n, 2 * n, 19)])
def test_zero_bubble_waits_for_forward_alone_and_holds_no_more(ranks: int, micro: int) -> None:
    order = zero_bubble(ranks, micro)
    assert max(each.end for each in replay(order)) == 3 * micro + ranks - 1
    assert max(most_held(order)) == max(most_held(one_f_one_b(ranks, micro)))
    assert messages(order) == 2 * (ranks - 1) * micro


@pytest.mark.parametrize("order", [gpipe(4, 6), one_f_one_b(4, 6), interleaved(4, 8, 2),
                                   zero_bubble(4, 6)])  # fmt: skip
def test_the_sequence_has_all_work_after_what_it_needs(order: Order) -> None:
    works, done = sequence(order), set[Work]()
    last = max(work.stage for work in works)
    for work in works:
        kind, stage, m = work
        if kind == "F":
            assert not stage or Work("F", stage - 1, m) in done
        if kind in "BI":
            assert Work("F", stage, m) in done
            assert stage == last or Work(kind, stage + 1, m) in done
        if kind == "W":
            assert Work("I", stage, m) in done
        done.add(work)
    assert sorted(works) == sorted(work for of_rank in order for work in of_rank)
    for rank, of_rank in enumerate(order):
        assert [work for work in works if work.stage % 4 == rank] == [*of_rank]


def test_a_message_that_takes_its_time_makes_only_the_ends_longer() -> None:
    slow = replay(one_f_one_b(2, 1), hop=0.5)
    assert [(each.start, each.end) for each in slow] == [(0, 1), (1.5, 2.5), (2.5, 4.5), (5, 7)]


F, B, I, W = "FBIW"  # noqa: E741
WRONG: dict[str, list[list[tuple[str, int, int]]]] = {
    "nobody can go on: rank 0 waits with B(0, 1) for B(1, 1) of rank 1, "
    "rank 1 waits with F(1, 0) for F(0, 0) of rank 0": [
        [(F, 0, 1), (B, 0, 1), (F, 0, 0), (B, 0, 0)],
        [(F, 1, 0), (B, 1, 0), (F, 1, 1), (B, 1, 1)],
    ],
    "rank 0: F(1, 0) is no work of a stage of its own": [[(F, 1, 0)], [(F, 0, 0)]],
    "rank 0: G(0, 0) is no work of a stage of its own": [[("G", 0, 0)]],
    "rank 0 does F(0, 0) twice": [[(F, 0, 0), (F, 0, 0), (B, 0, 0)]],
    "rank 0 does B(0, 0) before F(0, 0)": [[(B, 0, 0), (F, 0, 0)]],
    "rank 0 does W(0, 0) before I(0, 0)": [[(F, 0, 0), (W, 0, 0), (I, 0, 0)]],
    "rank 0 never does B(0, 1)": [[(F, 0, 0), (B, 0, 0), (F, 0, 1)]],
    "rank 0 never does F(0, 0)": [[(F, 0, 1), (B, 0, 1)], [(F, 1, 0), (B, 1, 0)]],
    "rank 0 never does W(0, 0)": [[(F, 0, 0), (I, 0, 0)]],
    "rank 0 does B(0, 0), and backward once more in pieces": [
        [(F, 0, 0), (B, 0, 0), (I, 0, 0), (W, 0, 0)]
    ],
}


@pytest.mark.parametrize("text", WRONG)
def test_an_order_that_is_no_pipelines_is_refused_with_who_waits_for_whom(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        replay([[Work(*work) for work in works] for works in WRONG[text]])
    assert str(caught.value) == text


def test_with_blocking_sends_gpipe_comes_through_and_1f1b_does_not() -> None:
    assert [blocked(gpipe(ranks, 8)) for ranks in (1, 2, 4)] == [""] * 3
    assert blocked(one_f_one_b(1, 8)) == blocked(one_f_one_b(4, 1)) == ""
    assert blocked(one_f_one_b(2, 2)) == (
        "rank 0 sends F(0, 1) to rank 1, rank 1 sends B(1, 0) to rank 0"
    )
    for order in (one_f_one_b(4, 8), interleaved(4, 8, 2), zero_bubble(4, 8)):
        assert " sends " in blocked(order)


@pytest.mark.parametrize("order", [gpipe(3, 4), interleaved(3, 6, 2), zero_bubble(3, 4)])
def test_a_program_has_a_receive_for_each_send(order: Order) -> None:
    calls = [(rank, call) for rank in range(3) for call in program(order, rank)]
    sent = [(rank, call.peer, call.work) for rank, call in calls if call.sends]
    received = [(call.peer, rank, call.work) for rank, call in calls if not call.sends]
    assert sorted(sent) == sorted(received)
    assert len(sent) == messages(order) == len({*sent})


def test_sizes_that_no_order_has_are_refused() -> None:
    for make in (gpipe, one_f_one_b, zero_bubble):
        with pytest.raises(ValueError, match="micro must be at least 1, got 0"):
            make(2, 0)
        with pytest.raises(ValueError, match="ranks must be at least 1, got 0"):
            make(0, 2)
    with pytest.raises(ScheduleError, match="6 micro-batches do not divide into rounds of 4, one"):
        interleaved(4, 6, 2)
    with pytest.raises(ValueError, match="chunks must be at least 1, got 0"):
        interleaved(4, 8, 0)


@pytest.mark.parametrize("order", [gpipe, one_f_one_b])
def test_the_puzzles_judge_times_an_order_as_the_replay_does(
    order: Callable[[int, int], Order],
) -> None:
    task = {**PUZZLES["pipeline"].task, "limit": 8}
    source = f"ORDER = {[[tuple(w) for w in each] for each in order(4, 8)]}\n"
    source += "def order(stage, stages, batches):\n    for kind, _, m in ORDER[stage]:\n"
    source += "        yield forward(m) if kind == 'F' else backward(m)\n"
    report = run(source, task)
    assert report["right"], report["says"]
    drawn = {
        (int(name.split()[1]), kind[0].upper(), int(text[1:]), start, end)
        for name, blocks in report["lanes"]["rows"]
        for kind, start, end, text in blocks
    }
    passes = replay(order(4, 8))
    assert drawn == {(p.rank, p.work.kind, p.work.micro, p.start, p.end) for p in passes}
