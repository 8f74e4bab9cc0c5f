"""Work on lanes: when each piece runs, held against a clock that ticks through random lists."""

import math
import random
from collections.abc import Callable

import pytest

from minidist.schedule.lanes import Lanes, Work, busy, end, spans, waits
from minidist.schedule.pipeline import Order, gpipe, needs, one_f_one_b, stages_of

FOREVER = math.inf


def times(works: list[Work]) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in spans(works)]


# ---- by hand ----


def test_a_chain_runs_piece_after_piece_and_a_lane_in_the_order_of_the_list() -> None:
    chain = [Work("a", "", 2, []), Work("b", "", 3, [0]), Work("a", "", 1, [1])]
    assert times(chain) == [(0, 2), (2, 5), (5, 6)]
    same = [Work("a", "", 2, []), Work("a", "", 3, []), Work("a", "", 1, [])]
    assert times(same) == [(0, 2), (2, 5), (5, 6)]
    assert times([]) == []


def test_two_lanes_run_beside_each_other_until_one_needs_the_other() -> None:
    """A backward of three layers, the gradients of each of which travel for three seconds."""
    backward = [Work("compute", "backward", 2, [], str(layer)) for layer in (3, 2, 1)]
    network = [Work("network", "all-reduce", 3, [place]) for place in range(3)]
    step = [*backward, *network, Work("compute", "optimizer", 1, [5])]
    found = spans(step)
    assert times(step) == [(0, 2), (2, 4), (4, 6), (2, 5), (5, 8), (8, 11), (11, 12)]
    assert [(busy(found, lane)) for lane in ("compute", "network", "none")] == [7, 9, 0]
    assert end(found) == 12
    assert end([]) == 0
    assert [(span.lane, span.kind, span.text) for span in found[2:4]] == [
        ("compute", "backward", "1"),
        ("network", "all-reduce", ""),
    ]


def test_what_is_needed_may_stand_later_in_the_list() -> None:
    works = [
        Work("a", "", 1, [3]),
        Work("a", "", 1, []),
        Work("b", "", 2, []),
        Work("b", "", 2, []),
    ]
    assert times(works) == [(4, 5), (5, 6), (0, 2), (2, 4)]


def test_a_piece_waits_for_the_latest_of_all_that_it_comes_after() -> None:
    works = [Work(lane, "", takes, []) for lane, takes in (("a", 4), ("b", 7), ("c", 1))]
    assert times([*works, Work("c", "", 1, [0, 1, 2])])[-1] == (7, 8)


def test_a_hop_passes_between_an_end_and_a_start_and_keeps_no_lane_busy() -> None:
    works = [Work("a", "", 2, []), Work("b", "", 1, [0], hop=0.5), Work("a", "", 4, [])]
    assert times(works) == [(0, 2), (2.5, 3.5), (2, 6)]
    late = [Work("a", "", 2, []), Work("b", "", 9, []), Work("b", "", 1, [0], hop=0.5)]
    assert times(late)[-1] == (9, 10), "it has arrived long before"
    assert times([Work("a", "", 1, [], hop=3)]) == [(3, 4)], "from the beginning, after nothing"


def test_who_waits_for_whom_is_named_and_the_rest_runs() -> None:
    works = [
        Work("a", "", 1, []),
        Work("a", "", 1, [3]),
        Work("b", "", 1, [4, 0]),
        Work("b", "", 1, []),
        Work("c", "", 1, [1]),
        Work("c", "", 1, [3]),
        Work("d", "", 5, [0]),
    ]
    found = spans(works)
    assert [place for place, span in enumerate(found) if span.end < FOREVER] == [0, 6]
    assert (found[6].start, found[6].end) == (1, 6)
    assert waits(works, found) == [(1, 3), (2, 4), (4, 1)], "a for b, b for c, c for a"
    assert end(found) == FOREVER
    itself = [Work("a", "", 1, [0])]
    assert waits(itself, spans(itself)) == [(0, 0)]
    assert waits(works[6:], spans([Work("d", "", 5, [])])) == []


def test_what_never_ends_starts_and_all_that_needs_it_does_not() -> None:
    works = [
        Work("a", "", 2, []),
        Work("a", "dies", FOREVER, []),
        Work("a", "", 1, []),
        Work("b", "", 1, [0]),
        Work("b", "", 1, [1]),
        Work("c", "", 1, [4], hop=1),
    ]
    never = (FOREVER, FOREVER)
    assert times(works) == [(0, 2), (2, FOREVER), never, (2, 3), never, never]
    assert waits(works, spans(works)) == [(4, 1), (5, 4)], "a works for ever, and waits for nobody"


def test_lanes_take_work_while_time_passes() -> None:
    link = Lanes()
    assert link.free("link") == 0
    assert [
        link.do("link", "send", at, 2, text) for at, text in ((1, "x"), (1, "y"), (9, "z"))
    ] == [
        3,
        5,
        11,
    ]
    assert (link.free("link"), link.free("other")) == (11, 0)
    assert [(each.text, each.start, each.end) for each in link.spans] == [
        ("x", 1, 3),
        ("y", 3, 5),
        ("z", 9, 11),
    ]


# ---- against a clock ----


def ticked(works: list[Work], ticks: int) -> list[tuple[float, float]]:
    """Start and end of each piece, by asking every lane at every tick; all times are whole."""
    found = [(FOREVER, FOREVER) for _ in works]
    for now in range(ticks):
        moved = True
        while moved:  # what takes no time lets others start in the same tick
            moved = False
            for lane in {work.lane for work in works}:
                own = [place for place, work in enumerate(works) if work.lane == lane]
                left = [place for place in own if found[place][1] == FOREVER]
                busy = any(found[p][1] > now for p in own if p not in left)
                if busy or not left or found[left[0]][0] < FOREVER:
                    continue
                work = works[left[0]]
                if all(found[needed][1] + work.hop <= now for needed in work.after):
                    found[left[0]] = now, now + work.takes
                    moved = True
    return found


@pytest.mark.parametrize("seed", range(40))
def test_random_work_runs_as_on_a_clock_that_ticks(seed: int) -> None:
    draw = random.Random(seed)
    works = []
    places = draw.randrange(1, 16)
    for place in range(places):
        later = seed % 4 == 0 and draw.random() < 0.2  # some of these lists get stuck
        after = draw.sample(range(places if later else place), draw.randrange(min(place, 3) + 1))
        lane, takes = (
            draw.choice("abcd"),
            draw.choice([0, 1, 2, 5, FOREVER if seed % 5 == 0 else 3]),
        )
        works.append(Work(lane, "", takes, after, hop=draw.randrange(3) if after else 0))
    found = spans(works)
    assert times(works) == ticked(works, 100)
    for head, other in waits(works, found):
        assert found[head].start == FOREVER == found[other].end
        assert other in works[head].after


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_lanes_in_a_list_does_not_matter(seed: int) -> None:
    """Pieces of different lanes change places; what each lane does, and when, stays."""
    draw = random.Random(seed)
    works = [
        Work(draw.choice("abc"), str(place), draw.random(), draw.sample(range(place), place // 3))
        for place in range(20)
    ]
    order = sorted(range(20), key=lambda place: works[place].lane)
    turned = [
        Work(each.lane, each.kind, each.takes, [order.index(other) for other in each.after])
        for each in (works[place] for place in order)
    ]
    when = {span.kind: (span.start, span.end) for span in spans(works)}
    assert when == {span.kind: (span.start, span.end) for span in spans(turned)}


# ---- pipelines, whose length is known ----


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("ranks", "micro"), [(1, 1), (1, 4), (2, 2), (4, 8), (8, 3), (16, 32)])
@pytest.mark.parametrize(("forward", "backward"), [(1, 2), (3, 4), (0.5, 0.25)])
def test_a_pipeline_takes_n_minus_1_plus_m_times_forward_and_backward(
    make: Callable[[int, int], Order], ranks: int, micro: int, forward: float, backward: float
) -> None:
    order = make(ranks, micro)
    flat = [work for of_rank in order for work in of_rank]
    works = [
        Work(
            str(each.stage),
            each.kind,
            forward if each.kind == "F" else backward,
            [flat.index(other) for other in needs(each, stages_of(order)) if other in flat],
        )
        for each in flat
    ]
    found = spans(works)
    assert end(found) == (ranks - 1 + micro) * (forward + backward)
    assert all(busy(found, str(rank)) == micro * (forward + backward) for rank in range(ranks))
    assert waits(works, found) == []
