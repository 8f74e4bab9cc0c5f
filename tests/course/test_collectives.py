"""Graders of the collectives' lab: mistakes get a diagnosis."""

from typing import Any

import pytest
import torch

from course.graders import collectives as grade
from course.sandbox.threads import Failed, Mismatch, Rank, Threads
from tests.course.verdicts import each_mistake, says


def each_its_own_root(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    parts[rank].copy_(mine)
    broadcast(parts[rank], rank)


def own_left_out(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    parts[rank].copy_(mine)
    for src in range(len(parts)):
        if src != rank:
            broadcast(parts[src], src)


def own_not_copied(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    for src in range(len(parts)):
        broadcast(parts[src], src)


def through_mine(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    for src in range(len(parts)):
        broadcast(mine, src)
        parts[src].copy_(mine)


def next_slot(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    slots = [(src + 1) % len(parts) for src in range(len(parts))]
    parts[slots[rank]].copy_(mine)
    for src, slot in enumerate(slots):
        broadcast(parts[slot], src)


def twice(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    parts[rank].copy_(mine)
    for src in [*range(len(parts)), 0]:
        broadcast(parts[src], src)


def zeroes_mine(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    parts[rank].copy_(mine)
    mine.zero_()
    for src in range(len(parts)):
        broadcast(parts[src], src)


def rank_0_ends(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    if rank:
        broadcast(mine, 1)


def past_the_last(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    broadcast(mine, len(parts))


def wide_on_rank_1(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    broadcast(torch.zeros(5) if rank == 1 else mine, 0)


def only_small(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    if mine.numel() > 100:
        raise ValueError("too large")
    parts[rank].copy_(mine)
    for src in range(len(parts)):
        broadcast(parts[src], src)


def rounds(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    parts[rank].copy_(mine.round())
    for src in range(len(parts)):
        broadcast(parts[src], src)


def forever(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    while True:
        broadcast(mine, 0)


def exchanged(inputs: Any, all_to_all: Any) -> Any:
    received = [torch.empty_like(part) for part in inputs]
    all_to_all(received, inputs)
    return received


def sums_inputs(output: Any, inputs: Any, all_to_all: Any) -> None:
    exchanged(inputs, all_to_all)
    output.copy_(sum(inputs))


def no_exchange(output: Any, inputs: Any, all_to_all: Any) -> None:
    output.copy_(sum(inputs))


def adds_to_what_was_there(output: Any, inputs: Any, all_to_all: Any) -> None:
    for part in exchanged(inputs, all_to_all):
        output += part


def output_rebound(output: Any, inputs: Any, all_to_all: Any) -> None:
    output = sum(exchanged(inputs, all_to_all))  # noqa: F841


def into_inputs(output: Any, inputs: Any, all_to_all: Any) -> None:
    all_to_all(inputs, inputs)
    output.copy_(sum(inputs))


def swapped(output: Any, inputs: Any, all_to_all: Any) -> None:
    received = [torch.zeros_like(part) for part in inputs]
    all_to_all(inputs, received)
    output.copy_(sum(received))


def part_by_part(output: Any, inputs: Any, all_to_all: Any) -> None:
    for _ in range(2):
        received = exchanged(inputs, all_to_all)
    output.copy_(sum(received))


def one_output(output: Any, inputs: Any, all_to_all: Any) -> None:
    all_to_all([output], inputs)


def rounds_sums(output: Any, inputs: Any, all_to_all: Any) -> None:
    output.copy_(sum(exchanged(inputs, all_to_all)).round())


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


def test_a_collective_call_of_threads_is_carried_out_when_all_make_it() -> None:
    held = torch.arange(3.0)
    threads = Threads(3)
    threads.run(lambda rank, calls: calls.broadcast(held[rank], 2))
    assert held.tolist() == [2, 2, 2]
    assert threads.made == ["broadcast(src=2)"]


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
    (each_its_own_root, r"not make the same call: rank 0 broadcast\(src=0\), rank 1 broad.*=1"),
    (own_left_out, r"the ranks do not make the same call: rank 0 broadcast\(src=1\)"),
    (own_not_copied, r"on rank 0 nothing was written into parts\[0\]\. A broadcast carries"),
    (through_mine, r"on rank 0 parts\[1\] holds rank 0's, expected rank 1's `mine`"),
    (next_slot, r"on rank 0 parts\[0\] holds rank 3's, expected rank 0's `mine`"),
    (twice, r"it took 5 broadcasts; 4 are enough"),
    (zeroes_mine, r"`mine` was overwritten; it is an input"),
    (rank_0_ends, r"rank 0 has ended, but others wait for it: rank 1 broadcast\(src=1\)"),
    (past_the_last, r"ValueError: src must be a rank, 0\.\.3, got 4"),
    (wide_on_rank_1, r"With 4 ranks: .*size"),
    (only_small, r"On 4 real processes rank . raised ValueError: too large"),
    (rounds, r"On 4 real processes the result differs from minidist\.all_gather's on ranks"),
    (forever, r"make call after call: rank 0 broadcast\(src=0\)"),
]
MISTAKES[grade.reduce_scatter] = [
    (sums_inputs, r"rank 0 `output` holds 0→0 \+ 0→1 .* expected 0→0 \+ 1→0 \+ 2→0 \+ 3→0"),
    (no_exchange, r"rank 0 `output` holds 0→0 \+ 0→1 \+ 0→2 \+ 0→3, expected"),
    (adds_to_what_was_there, r"holds what was in it before, too"),
    (output_rebound, r"on rank 0 nothing was written into `output`, in place"),
    (into_inputs, r"`inputs` were overwritten"),
    (swapped, r"`output` holds 0 blocks, expected"),
    (part_by_part, r"it took 2 calls of all_to_all; one is enough"),
    (one_output, r"all_to_all needs 4 outputs and inputs, got 1 and 4"),
    (rounds_sums, r"On 4 real processes the result differs from minidist\.reduce_scatter's"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
