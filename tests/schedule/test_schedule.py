"""The form in which algorithms are stated, and what check() refuses."""

from typing import get_args

import numpy as np
import pytest

from minidist.errors import ScheduleError
from minidist.schedule.program import program
from minidist.schedule.schedule import Collective, Schedule, Send, Step, bounds
from minidist.schedule.simulate import goal, replay, start


def schedule_of(*steps: list[Send], ranks: int = 4, chunks: int = 4) -> Schedule:
    made = [Step.from_sends(step) for step in steps]
    return Schedule("test", "all_reduce", ranks, chunks, lambda: made)


def test_a_step_gives_back_the_messages_it_was_made_of() -> None:
    sends = [Send(0, 1, 2, True), Send(3, 2, 0, False, width=2)]
    assert list(Step.from_sends(sends)) == sends
    assert list(Step.from_sends([])) == []
    assert len(Step.of(src=[0, 1], dst=2, chunk=0, reduce=True)) == 2


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([[Send(0, 4, 0, True)]], r"step 1: rank 0 sends chunk 0 to rank 4.*not in 0\.\.3"),
        ([[], [Send(-1, 0, 0, True)]], r"step 2: rank -1 .*a rank is not in 0\.\.3"),
        ([[Send(0, 1, 4, True)]], r"chunk 4 .*a chunk is not in 0\.\.3"),
        ([[Send(0, 1, 3, True, width=2)]], r"chunks 3\.\.4 .*a chunk is not in 0\.\.3"),
        ([[Send(0, 1, 0, True, width=0)]], r"a message of no chunks"),
        ([[Send(2, 2, 0, True)]], r"rank 2 sends chunk 0 to rank 2.*to itself"),
        ([[Send(0, 1, 0, True), Send(2, 1, 0, False)]], r"race: .* written twice"),
        ([[Send(0, 1, 0, True, 2), Send(2, 1, 1, False)]], r"race: .* written twice"),
        ([[Send(0, 1, 0, False), Send(1, 2, 0, False)]], r"rank 0 sends .*race: .* is also sent"),
        ([[Send(0, 1, 0, True), Send(2, 1, 1, True)]], r"reduces two messages in one step"),
    ],
)
def test_check_rejects_and_names_step_and_message(steps: list[list[Send]], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        schedule_of(*steps).check()


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


@pytest.mark.parametrize("collective", get_args(Collective))
def test_what_a_collective_starts_from_and_promises(collective: Collective) -> None:
    letters = {"0": (0,), "1": (1,), "2": (2,), "+": (0, 1, 2), ".": (), "?": None}
    before, after = (
        tuple(tuple(letters[letter] for letter in word) for word in words.split())
        for words in PROMISES[collective]
    )
    chunks = len(before[0])
    assert start(collective, 3, chunks, root=1) == before
    assert goal(collective, 3, chunks, root=1, by=int(collective == "shift")) == after


def test_replay_refuses_to_use_what_is_not_there() -> None:
    def gather(*sends: Send) -> Schedule:
        steps = [Step.from_sends([send]) for send in sends]
        return Schedule("test", "gather", 3, 3, lambda: steps, root=1)

    with pytest.raises(ScheduleError, match=r"step 1: rank 0 sends chunk 2 .*: rank 0 does not"):
        replay(gather(Send(0, 1, 2, False)))
    with pytest.raises(ScheduleError, match=r"step 2: .* reduces .*: rank 1 does not hold it"):
        replay(gather(Send(0, 1, 0, False), Send(2, 1, 2, True)))
    assert replay(gather(Send(0, 1, 0, False), Send(2, 1, 2, False))).right() == 3


@pytest.mark.claim("B7")
@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 5, 7, 8, 33])
def test_uneven_slices_are_shorter_at_the_end_and_nothing_is_padded(chunks: int) -> None:
    for numel in (0, 1, chunks - 1, chunks, chunks + 1, 13 * chunks - 1, 13 * chunks + 1):
        edge = bounds(numel, chunks)
        sizes = np.diff(edge)
        assert (edge[0], sizes.sum()) == (0, numel)
        assert (sizes[:-1] >= sizes[1:]).all()
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("before", "after", "early"),
    [
        (Send(1, 2, 0, False), Send(1, 0, 0, False), True),  # rank 0 had nothing to do with it
        (Send(1, 0, 0, False), Send(2, 0, 0, False), False),  # what came would be overwritten
        (Send(0, 1, 0, False), Send(2, 0, 0, False), False),  # what leaves would be overwritten
        (Send(0, 1, 0, False), Send(1, 0, 0, False), True),  # it has left before this is sent
        (Send(0, 1, 0, False), Send(2, 0, 0, True), True),  # what is reduced has an inbox
    ],
)
def test_receives_are_posted_early_where_nothing_can_be_lost(
    before: Send, after: Send, early: bool
) -> None:
    """Rank 0: may it post what comes `after` while what comes `before` is on its way?"""
    steps = program(schedule_of([before], [after]), 0).steps
    assert [step.early for step in steps] == [True, early]
