"""DualPipeV: PyTorch's order, its published wait, and its memory beside the other orders'."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from minidist.errors import ScheduleError
from minidist.schedule.pipeline import (
    TAKES,
    Order,
    Overlapped,
    Pass,
    Work,
    bubble,
    check,
    dual_pipe_v,
    folded_wait,
    homes,
    messages,
    most_held,
    one_f_one_b,
    replay,
    sequence,
    zero_bubble,
)
from tests.support.cases import alike
from tests.support.refusals import all_refused

SIZES = ((1, 2), (1, 5), (2, 4), (3, 6), (3, 11), (4, 8), (4, 9), (8, 20))
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def torchs(schedule: Any, ranks: int, micro: int) -> Order:
    """An order as PyTorch lists it, of a schedule that is made without stages."""
    made = object.__new__(schedule)
    made.pp_group_size, made.num_stages, made._num_stages = ranks, 2 * ranks, 2 * ranks
    made._n_microbatches, made.n_local_stages = micro, 2

    def works(rank: int) -> list[Work]:
        own = list[Work]()
        for action in filter(None, made._calculate_single_rank_operations(rank)):
            pair = [
                Work(KINDS[each.computation_type.name], each.stage_index, each.microbatch_index)
                for each in action.sub_actions or [action]
            ]
            own += [Overlapped(*pair[0]), *pair[1:]] if len(pair) > 1 else pair
        return own

    return [works(rank) for rank in range(ranks)]


def listed(order: Order) -> list[list[tuple[Work, bool]]]:
    return [[(work, isinstance(work, Overlapped)) for work in works] for works in order]


@pytest.mark.claim("G3")
def test_work_and_pairs_are_torchs() -> None:
    for ranks, micro in SIZES:
        order = dual_pipe_v(ranks, micro)
        assert listed(order) == listed(torchs(schedules.ScheduleDualPipeV, ranks, micro))
        assert homes(order) == [*range(ranks), *reversed(range(ranks))]


def ends(passes: Sequence[Pass]) -> float:
    return max(each.end for each in passes)


def idle(passes: Sequence[Pass], rank: int) -> float:
    """How long a rank waits until the last one is done."""
    return ends(passes) - sum(each.end - each.start for each in passes if each.rank == rank)


@pytest.mark.claim("G3")
def test_it_waits_as_long_as_zero_bubble_and_holds_half_a_micro_batch_more() -> None:
    """In units of a rank's forward; a stage has half of its layers."""
    found, right = {}, {}
    halves = {kind: takes / 2 for kind, takes in TAKES.items()}
    for n, micro in SIZES:
        order, other = dual_pipe_v(n, micro), zero_bubble(n, micro)
        passes = replay(order, halves)
        waits = [idle(passes, rank) for rank in range(n)]
        found[n, micro] = [ends(passes), bubble(passes), messages(order), *waits, *most_held(order)]
        shares = [ends(replay(other)), bubble(replay(other))]
        right[n, micro] = [*shares, 4 * (n - 1) * micro, *[n - 1] * n, *[2 * n + 1] * n]
        assert max(most_held(other)) == n
    alike(found, {case: pytest.approx(each) for case, each in right.items()})


@pytest.mark.claim("G3")
def test_the_published_wait_is_the_last_ranks_where_i_takes_as_long_as_f() -> None:
    """And W no longer. With another I it is not."""
    found, right = {}, {}
    for (n, micro), f, w, hidden in product(SIZES, (1.5, 2), (0.5, 1, 1.5), (0, 0.2, 0.9)):
        pair = f + f + w - hidden * f
        takes = {"F": f, "B": f + w, "I": f, "W": w, "F&B": pair}
        found[n, micro, f, w, pair] = idle(replay(dual_pipe_v(n, micro), takes), n - 1)
        right[n, micro, f, w, pair] = pytest.approx(folded_wait(n, takes))
    alike(found, right)
    assert folded_wait(4, {**TAKES, "F": 1, "I": 2, "B": 3, "F&B": 4}) != pytest.approx(
        idle(replay(dual_pipe_v(4, 8), {**TAKES, "I": 2, "B": 3, "F&B": 4}), 3)
    )


@pytest.mark.claim("G3")
def test_where_a_pair_hides_travel_it_saves_that_in_every_micro_batch() -> None:
    """A forward and "I" compute for 1 and travel for 1; a pair computes for 3 and hides 2."""
    alone = {"F": 2.0, "I": 2.0, "W": 1.0, "B": 3.0, "F&B": 3.0}
    halves = {kind: takes / 2 for kind, takes in alone.items()}
    for n, micro in ((4, 8), (4, 64), (8, 64)):
        paired = ends(replay(dual_pipe_v(n, micro), halves))
        rest = [ends(replay(order(n, micro), alone)) for order in (zero_bubble, one_f_one_b)]
        assert paired < rest[0] < rest[1]
    assert paired < 0.75 * rest[0]


def test_a_pair_is_one_piece_of_work_and_without_its_time_two() -> None:
    order = dual_pipe_v(4, 8)
    passes = replay(order)
    of = {each.work: each for each in passes}
    for works in order:
        for place, work in enumerate(works):
            if isinstance(work, Overlapped):
                forward, backward = of[work], of[works[place + 1]]
                assert forward.end == backward.start
                assert backward.end - forward.start == 3
                later = of.get(Work("F", work.stage + 1, work.micro))
                assert later is None or later.start >= backward.end
    apart = {kind: takes for kind, takes in TAKES.items() if kind != "F&B"}
    for n, micro in SIZES:  # it waits half as long
        assert ends(replay(dual_pipe_v(n, micro))) - 6 * micro == 2 * (n - 1)
        assert ends(replay(dual_pipe_v(n, micro), apart)) - 6 * micro == n - 1
    assert sorted(sequence(order)) == sorted(work for works in order for work in works)
    assert ends(replay(order, dict.fromkeys(TAKES, 0.0))) == 0
    two: Order = [
        [Work("F", 0, 0), Overlapped("F", 0, 1), Work("B", 0, 0), Work("B", 0, 1)],
        [Work(kind, 1, m) for m in range(2) for kind in "FB"],
    ]
    of = {each.work: each for each in replay(two)}
    assert of[Work("F", 0, 1)].start == of[Work("B", 1, 0)].end == 4
    assert of[Work("F", 1, 1)].start == of[Work("B", 0, 0)].end == 7


def test_torchs_other_v_waits_half_as_long_and_holds_no_more_than_zero_bubble() -> None:
    for n, micro in ((2, 4), (4, 8), (4, 16), (8, 20)):
        order = torchs(schedules.ScheduleZBVZeroBubble, n, micro)
        assert {idle(replay(order), rank) / 2 for rank in range(n)} == {(n - 1) / 2}
        assert most_held(order) == [2 * n] * n


def test_what_is_no_pair_or_too_small_is_refused() -> None:
    forward, alone = Overlapped("F", 0, 0), Overlapped("B", 0, 0)
    text = r"rank 0: F\(0, 0\) is no forward with a backward after it"
    rows: list[Any] = [
        (partial(check, [[forward, Work("I", 0, 0), Work("W", 0, 0)]]), text),
        (partial(check, [[forward]]), text),
        (partial(check, [[Work("F", 0, 0), alone]]), text.replace("F", "B")),
        (partial(replay, [[forward, Work("B", 0, 0)]]), "nobody can go on: rank 0 waits with F"),
        (partial(replay, dual_pipe_v(1, 2), {**TAKES, "F&B": -1}), "takes.*F&B.*at least 0"),
        (partial(dual_pipe_v, 2, 3), "3 micro-batches are fewer than the 4 stages"),
        (partial(dual_pipe_v, 0, 3), "ranks must be at least 1, got 0"),
        (partial(homes, [[Work("F", 2, 0)], [Work("F", 0, 0)]]), "no rank has stage 1"),
    ]
    all_refused(rows, ValueError, ScheduleError)
