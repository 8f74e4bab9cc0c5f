"""The graders of the lab on ZeRO: mistakes get a diagnosis."""

from typing import Any

import minidist
from course.graders import zero as grade
from tests.course.by_hand import zero as hand
from tests.course.verdicts import each_mistake, says

# ---- who owns what ----


def cut(sizes: list[int], size: int, rank: int, last: bool = False) -> list[tuple[int, int]]:
    """Of each parameter what lies in [rank * size, (rank + 1) * size) of all of them."""
    found, offset = [], 0
    for each in sizes:
        start = min(max(rank * size - offset, 0), each)
        end = each if last else min(max((rank + 1) * size - offset, 0), each)
        found.append((start, end))
        offset += each
    return found


def up(sizes: list[int], ranks: int) -> int:
    return -(-sum(sizes) // ranks)


def down(sizes: list[int], ranks: int, rank: int) -> list[tuple[int, int]]:
    return cut(sizes, sum(sizes) // ranks, rank, last=rank == ranks - 1)


def each_parameter_alone(sizes: list[int], ranks: int, rank: int) -> list[tuple[int, int]]:
    parts = [-(-size // ranks) for size in sizes]
    return [
        (min(rank * part, size), min((rank + 1) * part, size))
        for part, size in zip(parts, sizes, strict=True)
    ]


def in_the_flat_one(sizes: list[int], ranks: int, rank: int) -> list[tuple[int, int]]:
    offsets = [sum(sizes[:place]) for place in range(len(sizes))]
    own = cut(sizes, up(sizes, ranks), rank)
    return [(o + start, o + end) for o, (start, end) in zip(offsets, own, strict=True)]


def test_however_an_empty_range_is_written_it_is_right() -> None:
    def shifted(sizes: list[int], ranks: int, rank: int) -> list[tuple[int, int]]:
        own = cut(sizes, up(sizes, ranks), rank)
        return [(start, end) if start < end else (9, 9) for start, end in own]

    assert grade.slices(lambda s, n, r: cut(s, up(s, n), r))
    assert grade.slices(shifted)


# ---- by hand, before a knob is turned ----


def summed(own: Any, whole: Any) -> None:
    minidist.reduce_scatter_tensor(own, whole)


def of_the_next_rank(own: Any, whole: Any) -> None:
    """What a ring leaves that was not shifted: rank r has the slice of rank r + 1."""
    hand.reduce_scatter(own, whole.roll(-len(own)))


# ---- the wire ----


UNITS = {
    "DDP": (2, 0),
    "ZeRO-1 on DDP": (3, 0),
    "ZeRO-1": (2, 0),
    "ZeRO-2": (1, 1),
    "ZeRO-3": (0, 3),
}


def wire(strategy: str, nbytes: int, ranks: int, micro: int, **other: tuple[int, int]) -> float:
    once, each = {**UNITS, **other}[strategy]
    return (once + each * micro) * (ranks - 1) / ranks * nbytes


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.slices] = [
    (down, "Round up.*the last one may hold padding"),
    (lambda s, n, r: cut(s, up(s, n), (r + 1) % n), "the slice of rank 1: rank r owns the r"),
    (in_the_flat_one, "Count within the parameter"),
    (each_parameter_alone, r"A slice has ceil\(sum\(sizes\) / ranks\) elements"),
    (lambda s, n, r: cut(s, up(s, n), r)[:1], "a range for each of the 2 parameters"),
    (lambda s, n, r: [1, 2], "expected a list of"),
]
MISTAKES[grade.by_hand] = [
    (hand.zero_1(reduce=summed), "step 1 .* moved 3 times too far: divide the sum"),
    (
        hand.zero_1(reduce=lambda own, whole: hand.reduce_scatter(own, whole / 3)),
        "divided twice",
    ),
    (hand.zero_1(reduce=hand.its_own), "slice 0: rank 0 used its own gradient"),
    (
        hand.zero_1(reduce=of_the_next_rank),
        "in slice 0: it was moved by the gradient of slice 1.*the r-th",
    ),
    (hand.zero_1(gather=lambda *_: None), "its own slice alone. All-gather the parameters"),
    (hand.zero_1(before=hand.moments_too), "rank 0 sent 3.0 times .*moments need not travel"),
    (hand.zero_1(write=False), "weights of rank 0 have not changed"),
    (hand.by_whole_parameters, "rank 0's optimizer keeps 24 moments; .* slice, 20"),
    (hand.zero_1(pad=False), "On 3 real processes rank . raised"),
    (hand.zero_1(afresh=True), "step 2 of 3 .* moments of the last step"),
]
MISTAKES[grade.during_backward] = [
    (hand.hooks(reduce=summed), "the sum over 3 ranks, expected the mean"),
    (hand.hooks(reduce=hand.its_own), "rank 0 the slice of parameter 0 is of its own gradient"),
    (hand.hooks(reduce=of_the_next_rank), "is that of rank 1: rank r keeps the r-th"),
    (hand.hooks(add=False), "the second backward alone: add to it"),
    (hand.hooks(last=False), "slice of parameter 3 is still zero.*every parameter"),
    (hand.hooks(free=False), "counts the first backward twice.*parameter.grad to None"),
    (hand.at_the_end, "up to 3 of 4 whole gradients were there at once"),
]
MISTAKES[grade.wire] = [
    (lambda s, b, n, k: wire(s, b, n, k) * n / max(n - 1, 1), "need not send its own slice"),
    (lambda s, b, n, k: wire(s, b, n, k) * n, "all ranks send together"),
    (lambda s, b, n, k: wire(s, b, n, 1), "freed after each"),
    (lambda s, b, n, k: wire(s, b, n, 1) * k, "what waits for the step"),
    (lambda s, b, n, k: wire(s, b, n, k, **{"ZeRO-3": (0, 5)}), "half of an all-reduce"),
    (lambda s, b, n, k: wire(s, b, n, k, **{"ZeRO-1": (3, 0)}), "For ZeRO-1 with"),
    (lambda s, b, n, k: wire(s, b, max(n, 2), k), "Alone, a rank sends nothing"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
