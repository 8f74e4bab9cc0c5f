"""Price a schedule: how long it takes on links of known latency and bandwidth.

The model is Hockney's (1994): a message of m bytes takes alpha + beta * m seconds on the links that
it crosses. Links work side by side, and messages of one step that share a link take turns for their
bytes, so a step takes as long as its busiest link needs; then its busiest receiver reduces what
came, at gamma seconds per byte (Thakur, Rabenseifner and Gropp, 2005).

Latency adds up along the paths that messages form. A step takes at least the latency of its
quickest message. A slower message delays only its receiver, and later the ranks that hear from it.
So a ring over nodes pays for a link between nodes once in each node that a chunk passes, not in
every step; NCCL's model counts the same (tuning.cc).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minidist.schedule.checks import amount, whole_number
from minidist.schedule.schedule import Ints, Schedule, Step

Floats = npt.NDArray[np.float64]


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
    """Links that messages cross, and the cost of reducing.

    `lanes`, given the arrays `src` and `dst` of a step, yields (link, number): the messages with
    the same number share one copy of that link; -1 marks those that do not use it. If `cores` is
    not 0, so many do all ranks' work: messages are work, not waiting, and take turns for their
    alpha too, as receivers do for what they reduce.
    """

    name: str
    lanes: Callable[[Ints, Ints], Iterator[tuple[Link, Ints]]]
    gamma: float = 0.0  #: seconds that a receiver takes to reduce one byte into its own
    cores: int = 0

    def __post_init__(self) -> None:
        amount("gamma", self.gamma)


def switch(link: Link | Sequence[Link], gamma: float = 0.0) -> Topology:
    """Every rank has one link out and one link in; the switch between them is never the limit.

    A list of links: those of rank 0, of rank 1, ...
    """
    links = link if isinstance(link, Sequence) else [link]
    if not links or not all(isinstance(each, Link) for each in links):
        raise TypeError(f"link: expected a Link, or one for each rank, got {link!r}")

    def lanes(src: Ints, dst: Ints) -> Iterator[tuple[Link, Ints]]:
        for end in (src, dst):
            if isinstance(link, Link):
                yield link, end
            else:
                for each in set(link):
                    yield each, np.where([link[rank] == each for rank in end], end, -1)

    return Topology("switch", lanes, gamma)


def shared(link: Link, gamma: float = 0.0, *, cores: int = 1) -> Topology:
    """Ranks of one host, whose few cores do all of their work.

    With one core all messages take turns on one link; with more, each takes its share of them.
    """
    whole_number("cores", cores, 1)

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


def price(schedule: Schedule, topology: Topology) -> Callable[[float], float]:
    """Walk through the schedule once; what it returns is called with any number of bytes.

    All chunks count as equally large: rounding to whole elements is left out.
    """
    if not isinstance(topology, Topology):
        raise TypeError(f"topology: expected one such as switch(link), got {topology!r}")
    cores = topology.cores
    # How many steps have the same loads: for each link, its beta and the chunks on its busiest
    # copy; and the chunks that the busiest receiver reduces.
    loads: Counter[tuple[tuple[tuple[float, int], ...], int]] = Counter()
    latency, late = 0.0, np.zeros(schedule.ranks)
    for step, times in schedule.outline():
        busiest, alpha = [], np.zeros(len(step))
        for link, number in topology.lanes(step.src, step.dst):
            used = number >= 0
            if used.any():
                turns = int(np.bincount(number[used]).max()) if cores else 1
                alpha[used] = np.maximum(alpha[used], link.alpha * turns)
                busiest.append((link.beta, _most(number[used], step.width[used])))
        latency += float(alpha.min()) * times
        late = _delays(late, step, alpha - alpha.min(), times)
        receiver = step.dst[step.reduce]
        worker = np.arange(len(receiver)) % cores if cores else receiver
        loads[tuple(busiest), _most(worker, step.width[step.reduce])] += times
    latency += float(late.max())

    def seconds(nbytes: float) -> float:
        chunk, total = amount("nbytes", nbytes) / schedule.chunks, latency
        for (links, reduced), times in loads.items():
            moved = max(beta * chunks for beta, chunks in links)
            total += times * (moved + topology.gamma * reduced) * chunk
        return total

    return seconds


def _delays(late: Floats, step: Step, extra: Floats, times: int) -> Floats:
    """Each rank's delay after `times` such steps, if each was `late` before them.

    A rank is as late as it was, or as late as the rank it hears from, plus the `extra` of that
    message. After a run of steps it is as late as the worst of the ranks up to `times` hops back
    makes it. The worst of 1, 2, 4, ... hops is found from the one before.
    """
    if not (late.any() or extra.any()):
        return late
    if times == 1 or len(np.unique(step.dst)) < len(step):
        for _ in range(times):
            before, late = late, late.copy()
            np.maximum.at(late, step.dst, before[step.src] + extra)
        return late
    source, hop = np.arange(len(late)), np.zeros(len(late))
    source[step.dst], hop[step.dst] = step.src, extra
    delay, origin, way = late, np.arange(len(late)), np.zeros(len(late))  # no hops so far
    worst = np.maximum(late, late[source] + hop)  # paths of at most one hop
    while times:
        if times % 2:
            delay = np.maximum(delay, worst[origin] + way)
            origin, way = source[origin], way + hop[origin]
        worst = np.maximum(worst, worst[source] + hop)
        source, hop, times = source[source], hop + hop[source], times // 2
    return delay


def seconds(schedule: Schedule, nbytes: float, topology: Topology) -> float:
    """Return the predicted time of `schedule` on a tensor of `nbytes` bytes."""
    return price(schedule, topology)(nbytes)


def _most(number: Ints, chunks: Ints) -> int:
    return int(np.bincount(number, weights=chunks).max(initial=0))
