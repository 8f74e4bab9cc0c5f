"""Pipelines: while one segment of the tensor goes on, the next one comes in.

Along a chain, and along two binary trees at once; both from Sanders, Speck and Träff (2009).
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import numpy as np

from minidist.schedule.schedule import Ints, Schedule, Step


def chain_all_reduce(ranks: int, *, segments: int = 1) -> Schedule:
    """Sums grow along the chain to rank 0; each comes back while later segments are on their way.

    2(N - 1) + S - 1 steps of G/S for S segments of a tensor of G bytes; each rank inside the chain
    sends 2G, once up and once down, and no message is smaller for there being more ranks.
    """
    up = np.arange(ranks - 1)  # the edge from rank up + 1 to rank up
    start = np.concatenate((up[::-1], ranks - 1 + up))
    steps = partial(pipelined, up + 1, up, 0 * up, start, segments)
    return Schedule("chain all-reduce", "all_reduce", ranks, segments, steps)


def double_tree_all_reduce(ranks: int, *, segments: int = 1) -> Schedule:
    """Sums grow up two binary trees and come down again, S segments of each half as a pipeline.

    Half of the ranks are leaves of one tree, and send little; in the other they are inside. A rank
    gets a message from one child in even steps and from the other one in odd steps, so a segment
    follows every second step: at most 4 floor(log2 N) + 2(S - 1) steps of G/2S, for a tensor of G
    bytes. Whatever N is, no rank sends more than 2G.
    """
    child, parent, tree = _edges(ranks)
    start = _start(child, parent, tree)
    steps = partial(pipelined, child, parent, tree * segments, start, segments, period=2)
    return Schedule("double tree all-reduce", "all_reduce", ranks, 2 * segments, steps)


def pipelined(
    child: Ints, parent: Ints, first: Ints, start: Ints, segments: int, period: int = 1
) -> Iterator[Step]:
    """Send `segments` chunks up every edge, one behind the other, and their sums down again.

    An edge sends chunk `first` in step `start`, which is given for all edges up and then for all
    edges down, and the chunk after it every `period` steps.
    """
    src, dst = np.concatenate((child, parent)), np.concatenate((parent, child))
    first, reduce = np.tile(first, 2), np.arange(len(src)) < len(child)
    for t in range(int(start.max(initial=-1)) + period * (segments - 1) + 1):
        number, waits = np.divmod(t - start, period)
        live = np.flatnonzero((waits == 0) & (number >= 0) & (number < segments))
        yield Step.of(src[live], dst[live], first[live] + number[live], reduce[live])


def _edges(ranks: int) -> tuple[Ints, Ints, Ints]:
    """The edges of both trees, children first: (child, parent, which tree).

    The second tree is the first one mirrored, or turned by one place if N is odd: as every other
    place of the first is a leaf, no rank is inside both.
    """
    place = np.arange(1, ranks + 1)  # in the binary tree whose in-order walk is 1, 2, ..., N
    bit = place & -place
    near, far = place ^ bit, place ^ bit | 2 * bit
    above = np.where(far <= ranks, far, near)  # the root is below 0
    order = np.argsort(bit, kind="stable")[:-1]  # leaves first; the root is last
    child, parent = place[order] - 1, above[order] - 1
    other = (place - 2) % ranks if ranks % 2 else ranks - place  # who has it in the second tree
    src, dst = (np.concatenate((end, other[end])) for end in (child, parent))
    return src, dst, np.repeat([0, 1], len(child))


def _start(src: Ints, dst: Ints, tree: Ints) -> Ints:
    """The first step in which each edge sends: up, after those below it; down, the other way.

    Edges with one sender must differ in whether that is an even or an odd step, and so must those
    with one receiver. A rank has two parents at most, one in each tree, and two children, all in
    one tree. So edges that must differ form paths and even rings: alternating along them is enough.
    """
    edges = list(zip(src.tolist(), dst.tolist(), tree.tolist(), strict=True))
    touching: dict[tuple[str, int], list[int]] = defaultdict(list)
    for edge, (child, parent, _) in enumerate(edges):
        touching["from", child].append(edge)
        touching["to", parent].append(edge)
    odd: dict[int, int] = {}
    for first in range(len(edges)):
        todo = [(first, 0)]
        while todo:
            edge, own = todo.pop()
            if edge not in odd:
                odd[edge] = own
                child, parent, _ = edges[edge]
                near = touching["from", child] + touching["to", parent]
                todo += [(each, 1 - own) for each in near]
    ready: dict[tuple[int, int], int] = defaultdict(int)  # (tree, rank): when it has all
    start = np.zeros_like(src)
    for edge, (child, parent, which) in enumerate(edges):
        begin = ready[which, child]
        start[edge] = begin + (begin + odd[edge]) % 2
        ready[which, parent] = max(ready[which, parent], int(start[edge]) + 1)
    return np.concatenate((start, 2 * int(start.max(initial=0)) + 1 - start))
