"""Orders of a pipeline: proven by replay, priced by their formulas, refused where they hang."""

from functools import partial
from itertools import product
from typing import Any, cast

import pytest

from minidist.errors import ScheduleError
from minidist.schedule.pipeline import (
    Work,
    blocked,
    bubble,
    check,
    dual_pipe_v,
    gpipe,
    homes,
    interleaved,
    messages,
    most_held,
    one_f_one_b,
    program,
    replay,
    sequence,
    stages_of,
    zero_bubble,
)
from tests.support.cases import alike
from tests.support.refusals import all_refused, says


@pytest.mark.claim("G1")
def test_the_bubble_of_gpipe_and_of_1f1b_is_the_formulas() -> None:
    takes = ({"F": 1.0, "B": 2.0}, {"F": 1.0, "B": 1.0}, {"F": 3.0, "B": 4.0})
    found, formula = {}, {}
    for n, micro in product((1, 2, 3, 16), (1, 2, 8, 32)):
        orders = {"gpipe": gpipe(n, micro), "1f1b": one_f_one_b(n, micro)}
        held = {"gpipe": [micro] * n, "1f1b": [min(micro, n - r) for r in range(n)]}
        for name, order in orders.items():
            bubbles = [bubble(replay(order, each)) for each in takes]
            found[name, n, micro] = [*bubbles, messages(order), *most_held(order)]
            shares = [(n - 1) / (micro + n - 1)] * len(takes)
            formula[name, n, micro] = [*shares, 2 * (n - 1) * micro, *held[name]]
    alike(found, {case: pytest.approx(each) for case, each in formula.items()})


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    found, formula = {}, {}
    for n, rounds, chunks in product((1, 2, 3, 8), (1, 2, 5), (1, 2, 3)):
        micro = rounds * n
        order = interleaved(n, micro, chunks)
        passes = replay(order, {"F": 1 / chunks, "B": 2 / chunks})
        ends = max(each.end for each in passes)
        found[n, micro, chunks] = [bubble(passes), ends, messages(order), *most_held(order)]
        ahead = [2 * (n - 1 - rank) + (chunks - 1) * n for rank in range(n)]
        formula[n, micro, chunks] = [
            (n - 1) / (chunks * micro + n - 1),
            3 * micro + 3 * (n - 1) / chunks,
            2 * (chunks * n - 1) * micro * (n > 1),
            *(min(1 + each, chunks * micro) for each in ahead),
        ]
    alike(found, {case: pytest.approx(each) for case, each in formula.items()})


def test_zero_bubble_waits_for_forward_alone_and_holds_no_more() -> None:
    found, formula = {}, {}
    for n, micro in ((n, m) for n, m in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 19)) if m >= n):
        order = zero_bubble(n, micro)
        ends = max(each.end for each in replay(order))
        found[n, micro] = ends, max(most_held(order)), messages(order)
        most = max(most_held(one_f_one_b(n, micro)))
        formula[n, micro] = 3 * micro + n - 1, most, 2 * (n - 1) * micro
    alike(found, formula)


def test_the_sequence_has_all_work_after_what_it_needs() -> None:
    several = gpipe(4, 6), one_f_one_b(4, 6), interleaved(4, 8, 2), zero_bubble(4, 6)
    for order in (*several, dual_pipe_v(4, 9)):
        works, home, done = sequence(order), homes(order), set[Work]()
        last = max(work.stage for work in works)
        for work in works:
            kind, stage, m = work
            if kind == "F":
                assert not stage or Work("F", stage - 1, m) in done
            if kind in "BI":
                assert Work("F", stage, m) in done
                assert stage == last or {("B", stage + 1, m), ("I", stage + 1, m)} & done
            if kind == "W":
                assert Work("I", stage, m) in done
            done.add(work)
        assert sorted(works) == sorted(work for of_rank in order for work in of_rank)
        for rank, of_rank in enumerate(order):
            assert [work for work in works if home[work.stage] == rank] == [*of_rank]


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
    "rank 1: F(0, 0) is no work of a stage of its own": [[(F, 0, 0), (B, 0, 0)], [(F, 0, 0)]],
    "no rank has stage 0": [[(F, 1, 0)]],
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


def test_an_order_that_is_no_pipelines_is_refused_with_who_waits_for_whom() -> None:
    orders = {
        text: [[Work(*work) for work in works] for works in order] for text, order in WRONG.items()
    }
    said = {text: says(partial(replay, order), ScheduleError) for text, order in orders.items()}
    alike(said, {text: f"ScheduleError: {text}" for text in WRONG})


def test_with_blocking_sends_gpipe_comes_through_and_1f1b_does_not() -> None:
    assert [blocked(gpipe(ranks, 8)) for ranks in (1, 2, 4)] == [""] * 3
    assert blocked(one_f_one_b(1, 8)) == blocked(one_f_one_b(4, 1)) == ""
    assert blocked(one_f_one_b(2, 2)) == (
        "rank 0 sends F(0, 1) to rank 1, rank 1 sends B(1, 0) to rank 0"
    )
    for order in (one_f_one_b(4, 8), interleaved(4, 8, 2), zero_bubble(4, 8), dual_pipe_v(4, 8)):
        assert " sends " in blocked(order)


def test_a_program_has_a_receive_for_each_send() -> None:
    for order in (gpipe(3, 4), interleaved(3, 6, 2), zero_bubble(3, 4), dual_pipe_v(3, 6)):
        calls = [(rank, call) for rank in range(3) for call in program(order, rank)]
        sent = [(rank, call.peer, call.work) for rank, call in calls if call.sends]
        received = [(call.peer, rank, call.work) for rank, call in calls if not call.sends]
        assert sorted(sent) == sorted(received)
        assert len(sent) == messages(order) == len({*sent})


def test_sizes_that_no_order_has_are_refused() -> None:
    makers = (gpipe, one_f_one_b, zero_bubble)
    rows = [(partial(make, 2, 0), "micro must be at least 1, got 0") for make in makers]
    rows += [(partial(make, 0, 2), "ranks must be at least 1, got 0") for make in makers]
    rows += [
        (partial(interleaved, 4, 6, 2), "6 micro-batches do not divide into rounds of 4, one"),
        (partial(interleaved, 4, 8, 0), "chunks must be at least 1, got 0"),
    ]
    all_refused(rows, ValueError, ScheduleError)


def test_what_is_no_order_and_times_that_none_takes_are_refused() -> None:
    order, any_check, any_replay = gpipe(2, 2), cast(Any, check), cast(Any, replay)
    nothing = "order: expected each rank's work, got none"
    asked = (check, replay, partial(program, rank=0), sequence, messages, blocked, stages_of)
    rows: list[Any] = [(partial(ask, [[]]), nothing) for ask in asked]
    rows += [
        (partial(check, []), nothing),
        (partial(any_check, None), "order: expected each rank's list of Work, got None"),
        (partial(any_check, [[1]]), "order: rank 0: expected Work, got 1"),
        (partial(replay, order, {"F": 1}), r"takes: expected how long 'B' takes, got only \['F'\]"),
        (
            partial(any_replay, order, {"F": 1, "B": "2"}),
            "takes.*: expected a number, got '2'",
        ),
        (partial(replay, order, hop=-1), "hop: expected a finite number of at least 0, got -1"),
    ]
    all_refused(rows, TypeError, ValueError, ScheduleError)
