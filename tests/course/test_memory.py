"""The graders of the lab on memory: mistakes are diagnosed."""

import math
from itertools import accumulate
from typing import Any

from course.graders import memory as grade
from minidist.memory.state import state
from tests.course.verdicts import each_mistake, says


def of_a_block(
    *, each: int = 4, wide: float = 16, norms: int = 2, attention: bool = True, pairs: bool = False
) -> Any:
    """Right as it stands, with knobs to get it wrong."""

    def my_activations(batch: int, time: int, width: int, heads: int) -> float:
        numbers = wide * width + 2 * norms + heads * attention + heads * time * pairs
        return each * batch * time * numbers

    return my_activations


def by_a_sweep(lives: Any) -> int:
    """Freed before born at the same time."""
    events = sorted([(a, 1, n) for a, _, n in lives] + [(b, 0, -n) for _, b, n in lives])
    return max(accumulate((change for *_, change in events), initial=0))


def born_before_freed(lives: Any) -> int:
    return max([sum(n for a, b, n in lives if a <= t <= b) for t, *_ in lives], default=0)


def with_checkpoints(*, shared: bool = True, shortest: bool = True, inside: bool = True) -> Any:
    """Right as it stands, with knobs to get it wrong."""

    def my_checkpointed(layers: int, every: int, kept: int, passed: int) -> int:
        most = 0
        for number in range(math.ceil(layers / every)):
            blocks = min(every, layers - number * every) if shortest else every
            again = blocks * kept if inside else kept
            most = max(most, number * passed + again + (0 if shared else passed))
        return most

    return my_checkpointed


def as_if_all_segments_were_full(layers: int, every: int, kept: int, passed: int) -> int:
    return math.ceil(layers / every) * passed + min(every, layers) * kept - passed


def ranks_for(*, up: bool = True, beside_too: bool = True, spare: int = 0) -> Any:
    """Right as it stands, with knobs to get it wrong."""

    def my_fewest(parameters: int, limit: int, beside: int, policy: Any, optimizer: str) -> Any:
        room = limit - beside if beside_too else limit
        if room <= 0:
            return None
        ranks = state(parameters, policy, optimizer).total / room
        return max(1, math.ceil(ranks) if up else math.floor(ranks)) + spare

    return my_fewest


def test_another_right_way_is_right_too() -> None:
    assert grade.peak(by_a_sweep)


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.activations] = [
    (of_a_block(each=1), "Those are numbers; each takes 4 bytes"),
    (of_a_block(each=2), "A number takes 4 bytes here, not 2"),
    (lambda b, t, w, h: of_a_block()(1, 1, w, h), "That is one token's"),
    (of_a_block(norms=0, attention=False), "The small ones are missing"),
    (of_a_block(attention=False), "Attention also keeps a number"),
    (of_a_block(norms=1), "two LayerNorms"),
    (of_a_block(norms=0), "A LayerNorm also keeps two numbers"),
    (of_a_block(wide=15), "One tensor is missing"),
    (of_a_block(wide=17), "a sum keeps nothing"),
    (of_a_block(wide=19), "views of one tensor"),
    (of_a_block(pairs=True), "never keeps its scores"),
    (lambda *_: None, "expected a number of bytes"),
]
MISTAKES[grade.peak] = [
    (lambda lives: sum(n for *_, n in lives), "they do not all live at once"),
    (lambda lives: max([n for *_, n in lives], default=0), "the largest tensor"),
    (born_before_freed, "gone before the next is born"),
]
MISTAKES[grade.checkpointed] = [
    (lambda layers, every, kept, passed: layers * kept, "without checkpoints"),
    (lambda n, every, kept, passed: math.ceil(n / every) * passed, "That is after forward"),
    (lambda n, every, kept, passed: min(n, every) * kept, "all the others wait"),
    (with_checkpoints(shared=False), "in it twice"),
    (with_checkpoints(inside=False), "all its blocks keep"),
    (as_if_all_segments_were_full, "the shorter one behind it is done with"),
    (with_checkpoints(shortest=False), "fewer blocks than that|the shorter one"),
    (lambda n, every, kept, passed: "all", "expected a number of bytes"),
]
MISTAKES[grade.fewest] = [
    (ranks_for(up=False), "Round up"),
    (ranks_for(beside_too=False), "needs room too"),
    (ranks_for(spare=1), "One rank less would do"),
    (lambda p, limit, beside, *_: None, "With enough ranks"),
    (lambda p, limit, beside, *_: 0 if limit > beside else None, "from 1 on, or None"),
    (
        lambda p, limit, beside, policy, o: ranks_for()(p, limit, beside, policy, o) or 10**6,
        "no room for any slice",
    ),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
