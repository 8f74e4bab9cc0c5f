"""The form in which algorithms are stated, and what check() refuses."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest

from minidist.errors import ScheduleError
from minidist.schedule import algorithms
from minidist.schedule.checks import whole_number
from minidist.schedule.cost import Link, nodes, price, seconds, shared, switch
from minidist.schedule.program import program
from minidist.schedule.replay import goal, start
from minidist.schedule.schedule import Collective, Schedule, Send, Step, bounds
from minidist.schedule.traffic import replay, traffic
from tests.support.cases import alike
from tests.support.refusals import all_refused
from tests.support.schedules import step_of


def schedule_of(*steps: list[Send], ranks: int = 4, chunks: int = 4) -> Schedule:
    made = [step_of(step) for step in steps]
    return Schedule("test", "all_reduce", ranks, chunks, lambda: made)


def test_a_step_gives_back_the_messages_it_was_made_of() -> None:
    sends = [Send(0, 1, 2, True), Send(3, 2, 0, False, width=2)]
    assert list(step_of(sends)) == sends
    assert list(step_of([])) == []
    assert len(Step.of(src=[0, 1], dst=2, chunk=0, reduce=True)) == 2


def test_check_rejects_and_names_step_and_message() -> None:
    rows: list[tuple[list[list[Send]], str]] = [
        ([[Send(0, 4, 0, True)]], r"step 1: rank 0 sends chunk 0 to rank 4.*not in 0\.\.3"),
        ([[Send(0, 1, 0, True)], [], [Send(-1, 0, 0, True)]], r"step 2: rank -1 .*not in 0\.\.3"),
        ([[Send(0, 1, 4, True)]], r"chunk 4 .*a chunk is not in 0\.\.3"),
        ([[Send(0, 1, 3, True, width=2)]], r"chunks 3\.\.4 .*a chunk is not in 0\.\.3"),
        ([[Send(0, 1, 0, True, width=0)]], r"a message of no chunks"),
        ([[Send(2, 2, 0, True)]], r"rank 2 sends chunk 0 to rank 2.*to itself"),
        ([[Send(0, 1, 0, True), Send(2, 1, 0, False)]], r"race: .* written twice"),
        ([[Send(0, 1, 0, True, 2), Send(2, 1, 1, False)]], r"race: .* written twice"),
        ([[Send(0, 1, 0, False), Send(1, 2, 0, False)]], r"rank 0 sends .*race: .* is also sent"),
        ([[Send(0, 1, 0, True), Send(2, 1, 1, True)]], r"reduces two messages in one step"),
    ]
    made = [(schedule_of(*steps).check, message) for steps, message in rows]
    all_refused(made, ScheduleError)


def test_check_allows_what_is_safe() -> None:
    swap = [Send(0, 1, 0, True), Send(1, 0, 0, True)]  # both reduce: each has an inbox
    both = [Send(0, 1, 0, True), Send(2, 1, 1, False)]  # one reduced, one overwritten elsewhere
    assert schedule_of(swap, both).check().ranks == 4


# Three ranks, root 1, a shift by 1. A word is a rank, a letter one of its chunks: the rank whose
# part it is, + all parts, . nothing, ? anything.
PROMISES: dict[Collective, tuple[str, str]] = {
    "all_reduce": ("000 111 222", "+++ +++ +++"),
    "reduce_scatter": ("000 111 222", "+?? ?+? ??+"),
    "all_gather": ("0.. .1. ..2", "012 012 012"),
    "broadcast": ("... 111 ...", "111 111 111"),
    "reduce": ("000 111 222", "??? +++ ???"),
    "gather": ("0.. .1. ..2", "??? 012 ???"),
    "scatter": ("... 111 ...", "1?? ?1? ??1"),
    "shift": ("0.. .1. ..2", "??2 0?? ?1?"),
    "all_to_all": ("000...... ...111... ......222", "0??1??2?? ?0??1??2? ??0??1??2"),
}


def test_what_a_collective_starts_from_and_promises() -> None:
    letters = {"0": (0,), "1": (1,), "2": (2,), "+": (0, 1, 2), ".": (), "?": None}
    found, right = {}, {}
    for collective in get_args(Collective):
        before, after = (
            tuple(tuple(letters[letter] for letter in word) for word in words.split())
            for words in PROMISES[collective]
        )
        right[collective] = before, after
        chunks, by = len(before[0]), int(collective == "shift")
        found[collective] = (
            start(collective, 3, chunks, root=1),
            goal(collective, 3, chunks, root=1, by=by),
        )
    alike(found, right)


def test_replay_refuses_to_use_what_is_not_there() -> None:
    def gather(*sends: Send) -> Schedule:
        steps = [step_of([send]) for send in sends]
        return Schedule("test", "gather", 3, 3, lambda: steps, root=1)

    early, empty = gather(Send(0, 1, 2, False)), gather(Send(0, 1, 0, False), Send(2, 1, 2, True))
    rows = [
        (partial(replay, early), r"step 1: rank 0 sends chunk 2 .*: rank 0 does not"),
        (partial(replay, empty), r"step 2: .* reduces .*: rank 1 does not hold it"),
    ]
    all_refused(rows, ScheduleError)
    assert replay(gather(Send(0, 1, 0, False), Send(2, 1, 2, False))).right() == 3


@pytest.mark.claim("B7")
def test_uneven_slices_are_shorter_at_the_end_and_nothing_is_padded() -> None:
    wrong = []
    for chunks in (1, 2, 3, 8, 33):
        for numel in (0, 1, chunks - 1, chunks, chunks + 1, 13 * chunks - 1, 13 * chunks + 1):
            edge = bounds(numel, chunks)
            sizes = [*map(int, np.diff(edge))]
            in_order = sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
            if edge[0] or sum(sizes) != numel or len(sizes) != chunks or not in_order:
                wrong.append(f"{numel} elements in {chunks} chunks: {sizes}")
    assert not wrong, "\n".join(wrong)


def test_receives_are_posted_early_where_nothing_can_be_lost() -> None:
    """Rank 0: may it post what comes second while what comes first is on its way?"""
    rows = [
        (Send(1, 2, 0, False), Send(1, 0, 0, False), True),  # rank 0 had nothing to do with it
        (Send(1, 0, 0, False), Send(2, 0, 0, False), False),  # what came would be overwritten
        (Send(0, 1, 0, False), Send(2, 0, 0, False), False),  # what leaves would be overwritten
        (Send(0, 1, 0, False), Send(1, 0, 0, False), True),  # it has left before this is sent
        (Send(0, 1, 0, False), Send(2, 0, 0, True), True),  # what is reduced has an inbox
    ]
    programs = [program(schedule_of([before], [after]), 0) for before, after, _ in rows]
    early = [[step.early for step in each.steps] for each in programs]
    assert early == [[True, right] for *_, right in rows]


# Numbers that a formula would take, and answer wrongly, are refused by name.

A: Any = algorithms  # also with arguments that the types forbid
LINK, RING = Link(1e-5, 1e-9), algorithms.ring_all_reduce(4)

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: seconds(RING, -1, switch(LINK)), ValueError, "nbytes: expected a finite .* got -1"),
    (lambda: seconds(RING, math.nan, switch(LINK)), ValueError, "nbytes: .* got nan"),
    (lambda: Link(-1e-6, 1e-9), ValueError, "alpha: .* at least 0, got -1e-06"),
    (lambda: switch(LINK, -1.0), ValueError, "gamma: .* got -1"),
    (lambda: shared(LINK, cores=0), ValueError, "cores must be at least 1, got 0"),
    (lambda: Link(None, 0), TypeError, "alpha: expected a number, got None"),  # type: ignore[arg-type]
    (lambda: Link(0, math.nan), ValueError, "beta: expected a finite number of at least 0, got n"),
    (lambda: price(RING, A), TypeError, "topology: expected one such as switch.link., got"),
    (lambda: nodes(0, LINK, LINK), ValueError, "local must be at least 1, got 0"),
    (lambda: nodes(2, LINK, LINK, rails=0), ValueError, "rails must be at least 1, got 0"),
    (lambda: switch(A), TypeError, "link: expected a Link, or one for each rank, got <module"),
    (lambda: switch([]), TypeError, r"link: expected a Link, or one for each rank, got \[\]"),
    (lambda: traffic(A, 1), TypeError, "schedule: expected one such as ring_all_reduce.4., got"),
    (lambda: replay(A), TypeError, "schedule: expected one such as ring_all_reduce.4., got <"),
    (lambda: traffic(RING, -1), ValueError, "numel must be at least 0, got -1"),
    (lambda: traffic(RING, 8, 0), ValueError, "itemsize must be at least 1, got 0"),
    (lambda: replace(RING, chunks=0), ValueError, "chunks must be at least 1, got 0"),
    (lambda: A.ring_all_reduce(1.5), TypeError, "ranks: expected a whole number, got 1.5"),
    (lambda: A.naive_all_reduce(True), TypeError, "ranks: .* got True"),
    (lambda: A.tree_broadcast(4, root=0.5), TypeError, "root: .* got 0.5"),
    (lambda: A.tree_reduce(4, root=-1), ValueError, r"root must be in 0\.\.3, got -1"),
    (lambda: A.tree_reduce(4, root=4), ValueError, r"root must be in 0\.\.3, got 4"),
    (lambda: A.chain_all_reduce(4, segments=0), ValueError, "chunks must be at least 1, got 0"),
    (lambda: A.ring_shift(4, by=1.5), TypeError, "by: .* got 1.5"),
    (lambda: A.chain_all_reduce(4, segments=2.5), TypeError, "chunks: .* got 2.5"),
    (lambda: A.hierarchical_all_reduce(6, local=4), ValueError, "6 ranks .* into nodes of 4"),
    (lambda: list(A.ring_all_gather(4, first=0.5)), TypeError, "first: .* got 0.5"),
    (lambda: Step.of(0.5, 1, 0, True), TypeError, "src: expected whole numbers, got 0.5"),
]


def test_a_wrong_number_is_refused_by_name() -> None:
    for kind in (TypeError, ValueError):
        rows = [(ask, message) for ask, error, message in REFUSED if error is kind]
        all_refused(rows, kind)


def test_what_stands_for_a_number_is_one() -> None:
    assert type(whole_number("n", np.int64(3), 0)) is int
    assert whole_number("n", -3) == -3
    assert seconds(RING, np.int64(0), switch(Link(np.float32(0.5), 0))) == 3
