"""What the puzzles' judge says of broken schedules, and its prices."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from course.puzzles.price import moved, seconds
from minidist.errors import ScheduleError
from minidist.schedule import cost as library
from minidist.schedule.replay import Fault, Replay
from minidist.schedule.schedule import Schedule, Send
from minidist.schedule.traffic import replay, traffic
from tests.schedule.test_proof import EVERY, options
from tests.support.schedules import step_of

FAST, SLOW = library.Link(3e-6, 1 / 450e9), library.Link(10e-6, 1 / 50e9)
each_algorithm = pytest.mark.parametrize("algorithm", EVERY, ids=lambda each: each.__name__)


def schedules(algorithm: Callable[..., Schedule], most: int | None = None) -> Iterator[Schedule]:
    """Over 2 to 16 ranks, with every option, or the last few of them."""
    for ranks in range(2, 17):
        for given in options(algorithm, ranks)[-(most or 0) :]:
            yield algorithm(ranks, **given)


@each_algorithm
def test_an_algorithm_has_the_librarys_price(algorithm: Callable[..., Schedule]) -> None:
    for schedule in schedules(algorithm, most=2):
        n, chunks = schedule.ranks, schedule.chunks
        sent = replay(schedule).sent
        for local in {0, *(size for size in range(1, n) if n % size == 0)}:
            own = moved(sent, n, chunks, local)
            whole = traffic(schedule, chunks, 1, local or None)
            assert own["steps"] == whole.steps
            assert own["sent"] * chunks == pytest.approx(whole.sent_bytes.max())
            assert own["total"] * chunks == pytest.approx(whole.sent_bytes.sum())
            assert own["between"] * chunks == pytest.approx(whole.between_nodes)
            place = library.nodes(local, FAST, SLOW, rails=local) if local else library.switch(FAST)
            links = [(link.alpha, link.beta) for link in (FAST, SLOW)]
            for size in (4.0, 25 * 2**20):
                wanted = library.seconds(schedule, size, place)
                assert seconds(sent, n, size / chunks, links, local) == pytest.approx(wanted)


# ---- broken schedules ----


def broken(draw: random.Random) -> tuple[Schedule, list[list[Send]]]:
    """An algorithm, and its steps with one to three small mistakes."""
    algorithm = draw.choice(EVERY)
    ranks = draw.randint(2, 9)
    schedule = algorithm(ranks, **draw.choice(options(algorithm, ranks)))
    steps = [list(step) for step in schedule]
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(steps)) if steps else 0
        step = steps[place] if steps and steps[place] else None
        if step is None:
            continue
        at = draw.randrange(len(step))
        kind = draw.choice(["field", "reduce", "drop", "again", "skip", "swap", "merge"])
        if kind == "field":
            field = draw.choice(["src", "dst", "chunk", "width"])
            value = getattr(step[at], field) + draw.choice([-1, 1])
            step[at] = step[at]._replace(**{field: value})
        elif kind == "reduce":
            step[at] = step[at]._replace(reduce=not step[at].reduce)
        elif kind == "drop":
            step.pop(at)
        elif kind == "again":
            step.append(step[at])
        elif kind == "skip":
            steps.pop(place)
        elif kind == "swap":
            steps.insert(draw.randrange(len(steps)), steps.pop(place))
        elif place + 1 < len(steps):
            step += steps.pop(place + 1)
    return schedule, [step for step in steps if step]


def array_check(schedule: Schedule, steps: list[list[Send]]) -> int | None:
    """The first step that `Schedule.check` refuses, or that needs what is not there."""
    for after in range(1, len(steps) + 1):
        made = [step_of(step) for step in steps[:after]]
        cut = replace(schedule, name="broken", make_steps=lambda made=made: made, phases=())
        try:
            replay(cut.check())
        except ScheduleError:
            return after
    return None


def test_300_broken_schedules_are_refused_where_the_check_on_arrays_refuses_them() -> None:
    draw = random.Random(0)
    kinds = {"fault": 0, "wrong": 0, "right": 0}
    for _ in range(300):
        schedule, steps = broken(draw)
        done = Replay(
            schedule.collective, schedule.ranks, schedule.chunks, schedule.root, schedule.by
        )
        fault = None
        try:
            for step in steps:
                done.check(step)
                done.step(step)
        except Fault as found:
            fault = int(str(found).split(":")[0].removeprefix("Step "))
        assert fault == array_check(schedule, steps), (schedule.name, steps)
        ends = zip(done.state(), done.goal, strict=True)
        off = sum(b not in (None, a) for row, want in ends for a, b in zip(row, want, strict=True))
        assert done.wanted - done.right() == off
        assert bool(done.wrong()) == bool(off)
        kinds["fault" if fault else "wrong" if off else "right"] += 1
    assert kinds["fault"] > 100
    assert kinds["wrong"] > 50, kinds


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([3], "Step 1 is 3: a step is a list of Send(...)."),
        ([[3]], "Step 1 has 3 in it: a step is a list of Send(...)."),
        ([[Send(0, 1.0, 0, True)]], "whose dst is 1.0, not a whole number."),
        ([[Send(0, 1, "a", True)]], "whose chunk is 'a', not a number."),
        ([[Send(0, 1, 0, 2)]], "whose reduce is 2, not True or False."),
        (
            [[Send(0, 4, 0, True)]],
            "Step 1: rank 0 sends chunk 0 to rank 4. There is no rank 4, only 0 to 3.",
        ),
        (
            [[Send(0, 1, 3, True, 2)]],
            "rank 0 sends chunks 3 to 4 to rank 1. There is no chunk 4, only 0 to 3.",
        ),
        ([[Send(2, 2, 0, True)]], "Step 1: rank 2 sends chunk 0 to rank 2, itself."),
        ([[Send(0, 1, 0, True, 0)]], "a message from rank 0 has no chunks in it."),
        ([[Send(0, 1, 0, True), Send(2, 1, 1, True)]], "rank 1 receives two messages to add."),
        ([[Send(0, 1, 0, True), Send(2, 1, 0, False)]], "rank 1 receives chunk 0 twice."),
        (
            [[Send(0, 1, 0, False), Send(1, 2, 0, True)]],
            "rank 1 sends chunk 0 while rank 0 overwrites it.",
        ),
    ],
)
def test_a_mistake_is_said_in_a_sentence(steps: list[object], says: str) -> None:
    with pytest.raises(Fault, match=re.escape(says)):
        Replay("all_reduce", 4, 4).check(*steps)


@pytest.mark.parametrize(
    ("collective", "steps", "says"),
    [
        ("all_reduce", [[Send(0, 1, 0, True)], [Send(0, 1, 0, True)]], [
            "Step 2: rank 0 sends chunk 0 to rank 1, which adds it, but both have the part of "
            "rank 0 in it. So it counts twice.",
            "Rank 0 ends without the part of rank 1 in chunk 0.",
            "Rank 0 ends without the part of rank 1 in chunk 1.",
            "Rank 1 ends without the part of rank 0 in chunk 1.",
        ]),
        ("broadcast", [[Send(0, 1, 0, False)]], ["Rank 1 never receives chunk 1."]),
        ("all_gather", [[Send(0, 1, 0, False)]], ["Rank 0 never receives chunk 1."]),
    ],
)  # fmt: skip
def test_what_is_wrong_at_the_end_is_said(
    collective: str, steps: list[list[Send]], says: list[str]
) -> None:
    done = Replay(collective, 2, 2)
    for step in steps:
        done.step(step)
    assert done.wrong() == says


def test_one_port_is_a_rule_that_a_task_can_set() -> None:
    both = [Send(0, 1, 0, False), Send(0, 2, 0, False)]
    Replay("broadcast", 3, 1).check(both)
    with pytest.raises(Fault, match="rank 0 sends two messages, and may send one"):
        Replay("broadcast", 3, 1).check(both, one_port=True)
    twice = [Send(0, 2, 0, False), Send(1, 2, 1, False)]
    with pytest.raises(Fault, match="rank 2 receives two messages, and may receive one"):
        Replay("all_gather", 3, 3).check(twice, one_port=True)
