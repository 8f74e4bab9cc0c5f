"""Graders of the collectives' lab: mistakes get a diagnosis."""

from typing import Any

import pytest
import torch

from course.graders import collectives as grade
from course.sandbox.threads import Failed, Mismatch, Rank, Threads
from tests.course.verdicts import each_mistake, says


def gather(*, copy: Any = torch.clone, slot: int = 0, roots: Any = lambda n, _: range(n)) -> Any:
    """An all-gather by broadcasts, right as it stands, with a knob for each way to get it wrong."""

    def by_hand(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
        ranks = len(parts)
        if copy:
            parts[(rank + slot) % ranks].copy_(copy(mine))
        for src in roots(ranks, rank):
            broadcast(parts[(src + slot) % ranks], src)

    return by_hand


def through_mine(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    for src in range(len(parts)):
        broadcast(mine, src)
        parts[src].copy_(mine)


def taken(mine: torch.Tensor) -> torch.Tensor:
    values = mine.clone()
    mine.zero_()
    return values


def only_small(mine: torch.Tensor) -> torch.Tensor:
    if mine.numel() > 100:
        raise ValueError("too large")
    return mine


def forever(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    while True:
        broadcast(mine, 0)


def scatter(
    *, calls: int = 1, add: Any = lambda _, received: sum(received), write: Any = torch.Tensor.copy_
) -> Any:
    """A reduce-scatter by all_to_all, right as it stands, with knobs to get it wrong."""

    def by_hand(output: Any, inputs: Any, all_to_all: Any) -> None:
        for _ in range(calls):
            received = [torch.empty_like(part) for part in inputs]
            all_to_all(received, inputs)
        write(output, add(inputs, received))

    return by_hand


def into_inputs(output: Any, inputs: Any, all_to_all: Any) -> None:
    all_to_all(inputs, inputs)
    output.copy_(sum(inputs))


def swapped(output: Any, inputs: Any, all_to_all: Any) -> None:
    received = [torch.zeros_like(part) for part in inputs]
    all_to_all(inputs, received)
    output.copy_(sum(received))


RIGHT = {
    "A": "gather",
    "B": "reduce_scatter",
    "C": "broadcast",
    "D": "all_to_all",
    "E": "scatter",
    "F": "reduce",
}


@pytest.mark.parametrize(
    ("answer", "diagnosis"),
    [
        ({"A": "all_gather"}, r"picture A: after the call rank 0 has nothing in column 0"),
        ({"B": "scatter"}, r"picture B: before the call rank 1 has the part of rank 1 in column 0"),
        ({"C": "all_gather"}, r"picture C: before the call"),
        ({"D": "all_gather"}, r"picture D is an all_to_all: .* another block for every rank"),
        ({"A": "all_to_all"}, r"picture A is not an all_to_all"),
        ({"F": "all_reduce"}, r"picture F: after the call rank 0 has nothing .*ranks 0, 1, 2, 3"),
        ({"F": "sum"}, r"picture F: sum is none of all_gather, all_reduce, "),
    ],
)  # fmt: skip
def test_a_wrong_name_is_told_from_the_picture(answer: dict[str, Any], diagnosis: str) -> None:
    assert grade.names(lambda: RIGHT)
    says(diagnosis, grade.names(lambda: RIGHT | answer))


def test_no_two_pictures_are_alike() -> None:
    shown = {(each.start, each.goal) for each in grade.pictures().values()}
    assert len(shown) == len(RIGHT)


def test_a_collective_call_ends_when_a_thread_raises_or_leaves() -> None:
    def raises(rank: int, calls: Rank) -> None:
        if rank == 1:
            raise KeyError("x")
        calls.broadcast(torch.zeros(1), 0)

    with pytest.raises((Failed, Mismatch), match="on rank 1 it raised KeyError"):
        Threads(3).run(raises)

    def leaves(rank: int, calls: Rank) -> None:
        if not rank:
            calls.broadcast(torch.zeros(1), 0)

    with pytest.raises(Mismatch, match="rank 1 has ended, but others wait for it: rank 0 broad"):
        Threads(2).run(leaves)


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.all_gather] = [
    (
        gather(roots=lambda n, rank: [rank]),
        r"not make the same call: rank 0 broadcast\(src=0\), rank 1 broad.*=1",
    ),
    (gather(copy=None), r"on rank 0 nothing was written into parts\[0\]\. A broadcast carries"),
    (through_mine, r"on rank 0 parts\[1\] holds rank 0's, expected rank 1's `mine`"),
    (gather(slot=1), r"on rank 0 parts\[0\] holds rank 3's, expected rank 0's `mine`"),
    (gather(roots=lambda n, _: [*range(n), 0]), r"it took 5 broadcasts; 4 are enough"),
    (gather(copy=taken), r"`mine` was overwritten; it is an input"),
    (
        lambda parts, mine, rank, broadcast: rank and broadcast(mine, 1),
        r"rank 0 has ended, but others wait for it: rank 1 broadcast\(src=1\)",
    ),
    (gather(roots=lambda n, _: [n]), r"ValueError: src must be a rank, 0\.\.3, got 4"),
    (gather(copy=only_small), r"On 4 real processes rank . raised ValueError: too large"),
    (gather(copy=torch.round), r"On 4 real .* differs from minidist\.all_gather's on ranks"),
    (forever, r"make call after call: rank 0 broadcast\(src=0\)"),
]
MISTAKES[grade.reduce_scatter] = [
    (
        scatter(add=lambda inputs, _: sum(inputs)),
        r"rank 0 `output` holds 0→0 \+ 0→1 .* expected 0→0 \+ 1→0 \+ 2→0 \+ 3→0",
    ),
    (scatter(write=torch.Tensor.add_), r"holds what was in it before, too"),
    (scatter(write=lambda *_: None), r"on rank 0 nothing was written into `output`, in place"),
    (into_inputs, r"`inputs` were overwritten"),
    (swapped, r"`output` holds 0 blocks, expected"),
    (scatter(calls=2), r"it took 2 calls of all_to_all; one is enough"),
    (
        lambda output, inputs, all_to_all: all_to_all([output], inputs),
        r"all_to_all needs 4 outputs and inputs, got 1 and 4",
    ),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
