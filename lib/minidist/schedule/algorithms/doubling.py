"""Recursive doubling and halving: P = 2^k ranks exchange with partners at distances 1, 2, 4, ...

Other numbers of ranks are folded into P, the largest power of two in N, which costs two more steps;
see `Fold`. Source: Thakur, Rabenseifner and Gropp (2005). G bytes in the whole tensor.
"""

from collections.abc import Iterator

import numpy as np

from minidist.schedule.algorithms.tree import powers_of_two
from minidist.schedule.checks import whole_number
from minidist.schedule.schedule import Ints, Schedule, Step


def recursive_doubling_all_reduce(ranks: int) -> Schedule:
    """In each step partners exchange their whole tensors, and both add.

    log2 P steps, each rank sends G log2 P. If N is not P: 2 more steps of G each.
    """
    fold = Fold(ranks)
    place = np.arange(len(fold.members))

    def steps() -> Iterator[Step]:
        yield Step.of(fold.out, fold.into, chunk=0, reduce=True)
        for d in powers_of_two(len(place)):
            yield Step.of(fold.members, fold.members[place ^ d], chunk=0, reduce=True)
        yield Step.of(fold.into, fold.out, chunk=0, reduce=False)

    return Schedule("recursive doubling all-reduce", "all_reduce", ranks, 1, steps)


def halving_doubling_all_reduce(ranks: int) -> Schedule:
    """Rabenseifner's: reduce-scatter by halving, then all-gather by doubling.

    2 log2 P steps, each rank sends 2(P - 1)/P of G, as in the ring of P. Neighbours come first:
    the largest messages go the shortest way. If N is not P: 2 more steps of G each.
    """
    fold = Fold(ranks)
    power = len(fold.members)
    bits = [2] * (power.bit_length() - 1)  # the bits of a place; transposed, they are reversed
    who, edge = fold.members.reshape(bits).T.ravel(), np.arange(power + 1)

    def steps() -> Iterator[Step]:
        yield Step.of(fold.out, fold.into, chunk=0, reduce=True, width=power)
        yield from _halve(who, edge)

    halving = Schedule("halving", "reduce_scatter", ranks, power, steps)
    doubling = halving.backwards("doubling", "all_gather", reduce=False)
    return halving.then(doubling, "halving-doubling all-reduce", "all_reduce")


def halving_reduce_scatter(ranks: int) -> Schedule:
    """In each step partners send each other the half that the other one will own, and add.

    log2 N steps, each rank sends (N - 1)/N of G, if N is a power of two. Else 2 more steps: the
    folded ranks send G first and get their chunk last, and meanwhile a member works for both.
    """
    fold = Fold(ranks)

    def steps() -> Iterator[Step]:
        yield Step.of(fold.out, fold.into, chunk=0, reduce=True, width=ranks)
        yield from _halve(fold.members, fold.edge)
        yield Step.of(fold.into, fold.out, chunk=fold.out, reduce=False)

    return Schedule("halving reduce-scatter", "reduce_scatter", ranks, ranks, steps)


def doubling_all_gather(ranks: int) -> Schedule:
    """The halving backwards: in each step partners exchange all the chunks that they have.

    log2 N steps, each rank sends (N - 1)/N of G, if N is a power of two. Else 2 more steps: the
    folded ranks send their chunk first and get G last.
    """
    halving = halving_reduce_scatter(ranks)
    return halving.backwards("doubling all-gather", "all_gather", reduce=False)


class Fold:
    """Any number of ranks, folded into a power of two (Thakur et al., 2005).

    Of the first ranks every second one, `out`, hands what it has to the next, `into`, and gets the
    result from there in the end. The others, and `into`, are `members`: P = 2^k of them. `edge`:
    where each member's chunks begin if it also has those of the rank folded into it.
    """

    def __init__(self, ranks: int) -> None:
        power = 1 << (whole_number("ranks", ranks, 1).bit_length() - 1)
        place = np.arange(power + 1)
        self.edge = place + np.minimum(place, ranks - power)
        self.members = self.edge[1:] - 1
        self.out = 2 * np.arange(ranks - power)
        self.into = self.out + 1


def _halve(who: Ints, edge: Ints) -> Iterator[Step]:
    """Vector halving among the ranks `who`: place p ends with the chunks from edge[p] to edge[p+1].

    Before distance d place p is one of 2d that share a run; each sends the other's half of it.
    """
    place = np.arange(len(who))
    for d in reversed(powers_of_two(len(who))):
        low = (place ^ d) // d * d
        run = edge[low + d] - edge[low]
        yield Step.of(who, who[place ^ d], edge[low], True, run)
