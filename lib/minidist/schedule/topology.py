"""Networks: which links a message crosses, and what each of them costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minidist.schedule.checks import amount, whole_number
from minidist.schedule.schedule import Ints


@dataclass(frozen=True)
class Link:
    """`alpha`: seconds that a message of any size takes. `beta`: seconds per byte, 1/bandwidth."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        amount("alpha", self.alpha)
        amount("beta", self.beta)


@dataclass(frozen=True)
class Topology:
    """Which links a message crosses, and what it costs to reduce.

    Attributes:
        lanes: given the arrays `src` and `dst` of a step, yields (link, number): the messages with
            the same number share one copy of that link; -1 marks those that do not use it.
        gamma: seconds that a receiver takes to reduce one byte into its own.
        cores: if not 0, so many cores do all ranks' work: messages are work, not waiting, and take
            turns for their alpha too, as receivers do for what they reduce.
    """

    name: str
    lanes: Callable[[Ints, Ints], Iterator[tuple[Link, Ints]]]
    gamma: float = 0.0
    cores: int = 0

    def __post_init__(self) -> None:
        amount("gamma", self.gamma)
        whole_number("cores", self.cores, 0)


def switch(link: Link | Sequence[Link], gamma: float = 0.0) -> Topology:
    """Every rank has one link out and one link in; the switch between them is never the limit.

    A list of links: those of rank 0, of rank 1, ...
    """
    links = [link] if isinstance(link, Link) else list(link)
    if not links:
        raise ValueError("link: expected a Link, or one for each rank; got an empty list")
    kinds = list(dict.fromkeys(links))
    kind = np.array([kinds.index(each) for each in links])

    def lanes(src: Ints, dst: Ints) -> Iterator[tuple[Link, Ints]]:
        for end in (src, dst):
            for index, each in enumerate(kinds):
                yield each, np.where(kind[end] == index, end, -1) if len(kinds) > 1 else end

    return Topology("switch", lanes, gamma)


def shared(link: Link, gamma: float = 0.0, *, cores: int = 1) -> Topology:
    """Ranks of one host, whose few cores do all of their work.

    With one core all messages take turns on one link; with more, each takes its share of them.
    """
    cores = whole_number("cores", cores, 1)

    def lanes(src: Ints, dst: Ints) -> Iterator[tuple[Link, Ints]]:
        yield link, np.arange(len(src)) % cores

    return Topology("shared", lanes, gamma, cores)


def nodes(
    local: int, inside: Link, between: Link, *, rails: int = 1, gamma: float = 0.0
) -> Topology:
    """Nodes of `local` ranks, numbered node by node.

    Each rank has its own links `inside`. Each node has `rails` links out and as many
    in, which its ranks share evenly: with `rails` equal to `local` each has its own.
    """
    local, rails = whole_number("local", local, 1), whole_number("rails", rails, 1)

    def lanes(src: Ints, dst: Ints) -> Iterator[tuple[Link, Ints]]:
        same = src // local == dst // local
        for end in (src, dst):
            rail = end // local * rails + end % local * rails // local
            yield inside, np.where(same, end, -1)
            yield between, np.where(same, -1, rail)

    return Topology(f"nodes of {local}", lanes, gamma)
