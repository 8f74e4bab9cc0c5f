"""The graders of the lab on memory: mistakes are diagnosed."""

import math
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from course.graders import memory as grade
from minidist.memory.state import state
from tests.course.verdicts import diagnosed, reader


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


def test_numbers_of_other_types_are_right() -> None:
    assert grade.activations(lambda *case: np.int64(of_a_block()(*case)))
    assert grade.peak(lambda lives: torch.tensor(by_a_sweep(lives)))
    assert grade.checkpointed(lambda *case: float(with_checkpoints()(*case)))
    assert grade.fewest(lambda *case: (n := ranks_for()(*case)) and np.int64(n))


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.activations] = [
    ("unit", of_a_block(each=1), "Those are numbers; each takes 4 bytes"),
    ("unit", of_a_block(each=2), "A number takes 4 bytes here, not 2"),
    ("these sizes", lambda b, t, w, h: of_a_block()(1, 1, w, h), "That is one token's"),
    ("mistake", of_a_block(norms=0, attention=False), "The small ones are missing"),
    ("mistake", of_a_block(attention=False), "Attention also keeps a number"),
    ("mistake", of_a_block(norms=1), "two LayerNorms"),
    ("mistake", of_a_block(norms=0), "A LayerNorm also keeps two numbers"),
    ("off by one", of_a_block(wide=15), "One tensor is missing"),
    ("off by one", of_a_block(wide=17), "a sum keeps nothing"),
    ("mistake", of_a_block(wide=19), "views of one tensor"),
    ("mistake", of_a_block(pairs=True), "never keeps its scores"),
    ("constant", lambda *_: 8576, "For a batch of 2, 8 tokens, .* you say 8,576"),
    ("these sizes", lambda b, t, w, h: of_a_block()(b, t, w, 8), "width 16 and 2 heads"),
    ("type", lambda *_: None, "expected a number of bytes"),
]
WRONG[grade.peak] = [
    ("mistake", lambda lives: sum(n for *_, n in lives), "they do not all live at once"),
    ("mistake", lambda lives: max([n for *_, n in lives], default=0), "the largest tensor"),
    ("off by one", born_before_freed, "gone before the next is born"),
    ("constant", lambda lives: 5, "you say 5 bytes; it is 10"),
    ("these sizes", lambda lives: sum(n for a, b, n in lives if a <= 4 < b), "it is 130"),
    (
        "these sizes",
        lambda lives: by_a_sweep(lives or [(0, 1, 1)]),
        r"tensors \[\] you say 1 byte; it",
    ),
    ("unit", lambda lives: 8 * by_a_sweep(lives), "you say 40 bytes; it is 5"),
    ("type", lambda lives: [by_a_sweep(lives)], "expected a number of bytes"),
]
WRONG[grade.checkpointed] = [
    ("mistake", lambda layers, every, kept, passed: layers * kept, "without checkpoints"),
    ("mistake", lambda n, every, kept, passed: math.ceil(n / every) * passed, "is after forward"),
    ("mistake", lambda n, every, kept, passed: min(n, every) * kept, "all the others wait"),
    ("mistake", with_checkpoints(shared=False), "counts twice"),
    ("mistake", with_checkpoints(inside=False), "all its blocks keep"),
    ("these sizes", as_if_all_segments_were_full, "the shorter is freed"),
    ("off by one", with_checkpoints(shortest=False), "fewer blocks than that|the shorter is"),
    ("constant", lambda n, every, kept, passed: 19, "4 blocks, a checkpoint every 1, 34 bytes"),
    ("unit", lambda *case: 4 * with_checkpoints()(*case), "you say 76 bytes; it is 19"),
    ("type", lambda n, every, kept, passed: "all", "expected a number of bytes"),
]
WRONG[grade.fewest] = rows("""
off by one | ranks_for(up=False) | Round up
mistake | ranks_for(beside_too=False) | needs room too
off by one | ranks_for(spare=1) | One rank less would do
constant | lambda p, limit, beside, *_: None | With enough ranks
constant | lambda p, limit, beside, *_: 7 | you say 7. One rank less|Each would need
these sizes | lambda p, limit, beside, policy, o: ranks_for()(p, limit, beside, policy, "adam")
    | sgd.* One rank less would do
unit | lambda *case: (n := ranks_for()(*case)) and 8 * n | One rank less would do
mistake | lambda p, limit, beside, *_: 0 if limit > beside else None | from 1 on, or None
mistake | lambda p, limit, beside, policy, o: ranks_for()(p, limit, beside, policy, o) or 10**6
    | no room for any slice
type | lambda *case: ranks_for()(*case) or math.inf | return inf; expected a whole number
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
