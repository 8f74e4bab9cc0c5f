"""An emulated link: every collective takes the time that it would take on a network, by waiting.

On one machine ranks talk through memory, and moving bytes costs the cores that also compute. On a
cluster the network moves them, and the cores compute meanwhile. `Slowed` brings that back to a
laptop: it makes the real call, which is quick, and its handle is not done before the cost model
says so. A rank that waits sleeps, and so leaves its core to the others.

What it does not have of a real link: other traffic, failures, a rate that depends on the size of a
message, and network cards that take some of the host's memory bandwidth.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from minidist.comm.comm import Around, Comm, Handle, Pending, check_comm
from minidist.schedule.algorithms.direct import pairwise_all_to_all
from minidist.schedule.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from minidist.schedule.algorithms.tree import tree_broadcast
from minidist.schedule.cost import Link, price, switch

# Whose time calls take, by the name of the call.
ALGORITHMS = {
    "broadcast": tree_broadcast,
    "all_reduce": ring_all_reduce,
    "reduce_scatter": ring_reduce_scatter,
    "all_gather": ring_all_gather,
    "all_to_all": pairwise_all_to_all,
}


class SlowedWork(NamedTuple):
    """The handle of a real call, which is done when the emulated link is."""

    inner: Handle
    span: tuple[float, float]  # its start and end, in seconds of `time.monotonic()`

    def wait(self) -> bool:
        self.inner.wait()
        time.sleep(max(0.0, self.span[1] - time.monotonic()))
        return True


class Slowed(Around):
    """A `Comm` whose calls take as long as on `link`; they follow one another on it.

    Each rank has such a link to a switch, and the algorithms are the ring, the tree for broadcasts,
    and pairwise messages, as if all as long, for an all-to-all. A call takes what
    `minidist.seconds` predicts for its bytes, from the moment when this rank makes it and the one
    before it is done; `comm` has to make it in less time.
    """

    def __init__(self, comm: Comm, link: Link) -> None:
        check_comm("Slowed: comm", comm)
        if not isinstance(link, Link):
            raise TypeError(f"Slowed: link: expected a Link(alpha, beta), got {link!r}")
        super().__init__(comm)
        net, ranks = switch(link), comm.ranks
        self._seconds = {name: price(make(ranks), net) for name, make in ALGORITHMS.items()}
        self._free = 0.0  # when the link has carried all that it was given

    def around(
        self, name: str, full: Tensor, call: Callable[[bool], Pending], async_op: bool
    ) -> Pending:
        inner = call(True)
        assert inner is not None
        start = max(time.monotonic(), self._free)
        nbytes = full.nbytes * (self.ranks if name == "all_to_all" else 1)  # of all ranks' blocks
        self._free = start + self._seconds[name](nbytes)
        work = SlowedWork(inner, (start, self._free))
        if async_op:
            return work
        work.wait()
        return None
