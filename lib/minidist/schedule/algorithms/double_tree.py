"""Two binary trees at once, each with half of the tensor (Sanders, Speck and Träff, 2009).

In one binary tree half of the ranks are leaves, which send little. A second tree, in which those
ranks are inside, uses the links that the first one leaves idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from minidist.schedule.algorithms.common import pipelined
from minidist.schedule.schedule import Ints, Schedule, Step


def double_tree_all_reduce(ranks: int, *, segments: int = 1) -> Schedule:
    """Sums grow up both trees and come down again, S segments of each half as a pipeline.

    A rank gets a message from one child in even steps and from the other one in odd steps, so a
    segment follows every second step: at most 4 floor(log2 N) + 2(S - 1) steps of G/2S, for a
    tensor of G bytes. Whatever N is, no rank sends more than 2G.
    """
    src, dst, tree = _edges(ranks)
    start = _start(src, dst, tree)
    up = Step.of(src, dst, tree * segments, reduce=True)
    back = 2 * int(start.max(initial=0)) + 1 - start  # down again in the opposite order
    both = Step.of(
        np.concatenate((up.src, up.dst)),
        np.concatenate((up.dst, up.src)),
        np.tile(up.chunk, 2),
        np.repeat([True, False], len(up)),
    )

    def steps() -> Iterator[Step]:
        return pipelined(both, np.concatenate((start, back)), segments, period=2)

    return Schedule("double tree all-reduce", "all_reduce", ranks, 2 * segments, steps)


def _edges(ranks: int) -> tuple[Ints, Ints, Ints]:
    """The edges of both trees from child to parent, and which tree, children before parents.

    The second tree is the first one mirrored, or turned by one place if N is odd: as every other
    place of the first is a leaf, no rank is inside both.
    """
    place = np.arange(ranks)
    other = (place - 1) % ranks if ranks % 2 else place[::-1]
    child = np.array(sorted(range(1, ranks + 1), key=lambda place: place & -place), dtype=np.int64)
    parent = np.array([_parent(place, ranks) for place in child.tolist()], dtype=np.int64)
    child, parent = child[parent > 0] - 1, parent[parent > 0] - 1
    src = np.concatenate((child, other[child]))
    dst = np.concatenate((parent, other[parent]))
    return src, dst, np.repeat([0, 1], len(child))


def _parent(child: int, ranks: int) -> int:
    """The parent in the binary tree whose in-order walk is 1, 2, ..., N; 0 for the root."""
    bit = child & -child
    parent = child ^ bit | 2 * bit
    return parent if parent <= ranks else child ^ bit


def _start(src: Ints, dst: Ints, tree: Ints) -> Ints:
    """When each edge sends first: after those below it, in the even or the odd steps."""
    colour = _colours(src, dst)
    ready: dict[tuple[int, int], int] = {}  # (tree, rank): the first step when it has all
    start = np.zeros(len(src), dtype=np.int64)
    for edge, (child, parent, which) in enumerate(zip(src, dst, tree, strict=True)):
        begin = ready.get((which, child), 0)
        start[edge] = begin + (begin + colour[edge]) % 2
        ready[which, parent] = max(ready.get((which, parent), 0), int(start[edge]) + 1)
    return start


def _colours(src: Ints, dst: Ints) -> dict[int, int]:
    """0 or 1 for each edge, so that those with one sender differ, and those with one receiver.

    A rank has two parents at most, one in each tree, and two children, all in one tree. So edges
    that must differ form paths and even rings, and to alternate along them is enough.
    """
    touching: dict[tuple[str, int], list[int]] = defaultdict(list)
    for edge, (child, parent) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        touching["from", child].append(edge)
        touching["to", parent].append(edge)
    colour: dict[int, int] = {}
    for first in range(len(src)):
        todo = [(first, 0)]
        while todo:
            edge, own = todo.pop()
            if edge not in colour:
                colour[edge] = own
                ends = touching["from", int(src[edge])] + touching["to", int(dst[edge])]
                todo += [(other, 1 - own) for other in ends]
    return colour
