"""What graders share, asked without ranks: sentences about tensors, traffic and crossings."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course.ask.averages import averages, backward, flat, net, off, times
from course.ask.crossing import check_crossing
from course.ask.ranks import REAL, WORLDS, Check, Cost, Storages, Traffic, drawn, graded
from course.ask.switchboard import Call, Part, Switchboard
from course.ask.table import seats
from course.ask.verdict import Wrong
from minidist.schedule.algorithms import recursive_doubling_all_reduce, ring_all_reduce

MEAN, OWN = torch.tensor([2.0, -4.0]), torch.tensor([5.0, 1.0])


def test_a_tensor_that_is_no_slip_is_off_by_its_largest_difference() -> None:
    told = "It is off by up to 5.0e-01. At [0] it is 1.5, expected 2."
    assert off("It", MEAN - torch.tensor([0.5, 0.25]), MEAN) == told
    assert off("It", None, MEAN) == "It has shape None, expected [2]."


def test_an_average_that_is_wrong_is_told_by_how_much() -> None:
    cases = {
        "still its own": OWN,
        "divided, and not summed": OWN / 4,
        "the sum over 4 ranks": 4 * MEAN,
        "divided twice": MEAN / 4,
        "is 3 times the average": 3 * MEAN,
    }
    said = {
        why: off("It", found, MEAN, averages(found, MEAN, OWN, 4)) for why, found in cases.items()
    }
    assert not [each for why, each in said.items() if why not in each], said
    assert times(3 * MEAN, MEAN) == pytest.approx(3)


def test_ranks_have_different_samples_and_together_the_batch() -> None:
    model, found = net((3, 2)), []
    for rank in (0, 1, None):
        model.zero_grad()
        backward(model, 7, rank, 2)
        found.append(flat(each.grad for each in model.parameters()))
    first, second, both = found
    assert not torch.allclose(first, second)
    assert torch.allclose((first + second) / 2, both)


def test_traffic_is_too_little_too_much_uneven_or_in_too_many_messages() -> None:
    def said(*sent: tuple[int, int], **how: Any) -> str:
        try:
            Cost(Traffic(0, 0), 1000, 4, "it is right", **how).check(
                [Traffic(*each) for each in sent]
            )
        except Wrong as wrong:
            return str(wrong)
        return ""

    assert said((500, 4), (500, 4)) == ""
    assert said((650, 4), (350, 4)) == "", "not quite even"
    assert "only 900 of the 1,000 bytes" in said((450, 1), (450, 1))
    assert "1,100 bytes, 1.1 times" in said((550, 1), (550, 1))
    assert "rank 1 sends 800 bytes, and 500 for each rank" in said((200, 1), (800, 1))
    assert said((200, 1), (800, 1), shared=False) == ""
    assert "rank 1 sends 5 messages where 4" in said((500, 3), (500, 5))


def test_memory_that_is_freed_or_emptied_is_not_held() -> None:
    storages, kept, emptied = Storages(), torch.ones(3), torch.ones(3)
    storages.watch(kept)
    storages.watch(emptied)
    storages.watch(torch.ones(3))
    assert storages.held() == 2, "the third has no name any more"
    emptied.untyped_storage().resize_(0)
    assert storages.held() == 1


def test_the_slower_way_is_named_where_they_do_not_cross() -> None:
    ways = {"doubling": recursive_doubling_all_reduce, "the ring": ring_all_reduce}
    for size, slower in ((1.0, "the ring"), (1e9, "doubling")):
        larger = "larger" if slower == "the ring" else "smaller"
        told = f"{slower} is slower, so they cross at a {larger} size"
        with pytest.raises(Wrong, match=re.escape(told)):
            check_crossing(lambda *_, size=size: size, 8, ways, above="the ring", why="")


def test_slips_of_a_seat_are_those_that_their_sentences_name() -> None:
    table = seats(lambda rank: divmod(rank, 4), {}, cases=[(6,)], told="", solved="")
    assert [slip(6) for slip in table.slips.values()] == [(2, 1), (2, 3), (1, 3), (1, 6)]


def test_a_rank_that_waits_for_two_in_a_circle_is_not_in_it() -> None:
    errors: dict[int, str] = {}
    board = Switchboard(3, lambda rank, _, error, __: errors.update({rank: error}))
    for rank, peer in ((0, 1), (1, 2), (2, 1)):
        board.post(rank, Call(rank, "", f"irecv from {peer}", parts=[Part(peer, sends=False)]))
    for rank in range(3):
        board.stuck(rank, rank, 0)
    circle = "rank 1 for rank 2, irecv from 2; rank 2 for rank 1, irecv from 1"
    assert set(errors.values()) == {f"2 ranks wait for each other: {circle}"}


@graded(f"{REAL}.")
def ranks_of(function: Callable[..., Any]) -> Iterator[Check]:
    ranks = dist.get_world_size()
    yield function() != ranks and f"you say {function()}."


def test_one_number_of_ranks_is_drawn_and_told_with_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = {}
    for seed in range(20):
        monkeypatch.setenv("COURSE_SEED", f"{seed}")
        seeds[drawn()] = seed
    assert {*seeds} == {2, 4}
    assert not {*seeds} & {*WORLDS}, "what is right for the others alone is never enough"
    for ranks, seed in seeds.items():
        monkeypatch.setenv("COURSE_SEED", f"{seed}")
        assert str(ranks_of(dist.get_world_size)) == f"Correct. On 3, 5 and {ranks} real processes."
        odd = ranks_of(lambda: dist.get_world_size() | 1)
        said = f"Wrong. On rank 0 of {ranks}, you say {ranks + 1}."
        assert str(odd) == f"{said} (drawn: {ranks} ranks; COURSE_SEED={seed})"
