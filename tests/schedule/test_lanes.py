"""Work on lanes: when each piece runs, held against a clock that ticks through random lists."""

import math
import random

from minidist.schedule.lanes import Lanes, Work, busy, end, spans, waits

FOREVER = math.inf


def times(works: list[Work]) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in spans(works)]


# ---- by hand ----


def test_two_lanes_run_beside_each_other_until_one_needs_the_other() -> None:
    """A backward of three layers, the gradients of each of which travel for three seconds."""
    backward = [Work("compute", "backward", 2, [], str(layer)) for layer in (3, 2, 1)]
    network = [Work("network", "all-reduce", 3, [place]) for place in range(3)]
    step = [*backward, *network, Work("compute", "optimizer", 1, [5])]
    found = spans(step)
    assert times(step) == [(0, 2), (2, 4), (4, 6), (2, 5), (5, 8), (8, 11), (11, 12)]
    assert [busy(found, lane) for lane in ("compute", "network", "none")] == [7, 9, 0]
    assert end(found) == 12
    assert (times([]), end([])) == ([], 0)
    assert [(span.lane, span.kind, span.text) for span in found[2:4]] == [
        ("compute", "backward", "1"),
        ("network", "all-reduce", ""),
    ]


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
    sent = [link.do("link", "send", at, 2, text) for at, text in ((1, "x"), (1, "y"), (9, "z"))]
    assert sent == [3, 5, 11]
    assert (link.free("link"), link.free("other")) == (11, 0)
    found = [(each.text, each.start, each.end) for each in link.spans]
    assert found == [("x", 1, 3), ("y", 3, 5), ("z", 9, 11)]


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


def drawn(seed: int) -> list[Work]:
    """A random list. Of every fourth some need what stands later, so that some get stuck."""
    draw, works = random.Random(seed), []
    places = draw.randrange(1, 16)
    for place in range(places):
        later = seed % 4 == 0 and draw.random() < 0.2
        after = draw.sample(range(places if later else place), draw.randrange(min(place, 3) + 1))
        takes = draw.choice([0, 1, 2, 5, FOREVER if seed % 5 == 0 else 3])
        hop = draw.randrange(3) if after else 0
        works.append(Work(draw.choice("abcd"), "", takes, after, hop=hop))
    return works


def test_random_work_runs_as_on_a_clock_that_ticks() -> None:
    wrong, stuck = [], 0
    for seed in range(40):
        works = drawn(seed)
        found = spans(works)
        if (got := times(works)) != (right := ticked(works, 100)):
            wrong.append(f"seed {seed}: {works}: {got}, and on the clock {right}")
        for head, other in waits(works, found):
            stuck += 1
            if not found[head].start == FOREVER == found[other].end or (
                other not in works[head].after
            ):
                wrong.append(f"seed {seed}: {works}: {head} is said to wait for {other}")
    assert not wrong, "\n".join(wrong)
    assert stuck > 3


def test_the_order_of_lanes_in_a_list_does_not_matter() -> None:
    """Pieces of different lanes change places; what each lane does, and when, stays."""
    wrong = []
    for seed in range(20):
        draw = random.Random(seed)
        works = [
            Work(draw.choice("abc"), str(at), draw.random(), draw.sample(range(at), at // 3))
            for at in range(20)
        ]
        order = sorted(range(20), key=lambda place, works=works: works[place].lane)
        turned = [
            Work(each.lane, each.kind, each.takes, [order.index(other) for other in each.after])
            for each in (works[place] for place in order)
        ]
        listed = (spans(works), spans(turned))
        one, other = ({span.kind: (span.start, span.end) for span in each} for each in listed)
        if one != other:
            wrong.append(f"seed {seed}: {one}, and by lanes {other}")
    assert not wrong, "\n".join(wrong)
