"""An emulated cluster with a clock of its own: nobody sleeps, time is arithmetic.

Ranks are real processes, and what they exchange is real; how long that takes on this machine does
not matter. A layer's forward sets its rank's clock forward by its operations over the machine's
rate, and backward by twice that. A collective is done when it is called, through shared memory, and
counts as what rings would send on the cluster's links. It ends on the clock when the cost model
says so: a rank that waits for it is set forward to its end, unless it is later already. So what
overlaps is what the program lets overlap, and the same program takes the same time everywhere, on a
busy laptop too.

What it does not have: the optimizer's own time, other traffic, and ranks that wait for a late one
in the middle of a step. At the end of a step all ranks take the time of the latest.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from course.chapters.capstone import task
from course.training.emulated import working
from minidist.comm.comm import Around, Comm, Pending, Start
from minidist.comm.ours import Ours
from minidist.comm.slowed import ALGORITHMS
from minidist.schedule.cost import Link, price, switch
from minidist.schedule.lanes import Lanes

HALVES = {"broadcast": 1, "all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
LINKS = {
    "inside": Link(task.MACHINE.nvlink_latency, 1 / task.MACHINE.nvlink),
    "between": Link(task.MACHINE.network_latency, 1 / task.MACHINE.network),
}


class Clock:
    """A rank's time, the bytes that it has sent, and when each of its links has carried them."""

    def __init__(self) -> None:
        self.now, self.sent, self.links = 0.0, 0, Lanes()

    def compute(self, seconds: float) -> None:
        """Let the rank compute."""
        self.now += seconds

    def carry(self, links: Sequence[str], seconds: float) -> float:
        """Give something to links that it needs all at once; when it will be there."""
        start = max([self.now, *(self.links.free(each) for each in links)])
        return max(self.links.do(each, "carry", start, seconds) for each in links)


class ClockedWork(NamedTuple):
    """The handle of a call whose result is there, and on the clock will be at `end`."""

    clock: Clock
    end: float
    span: None = None

    def wait(self) -> bool:
        """Return True; it is then `end`, or later."""
        self.clock.now = max(self.clock.now, self.end)
        return True


class Way(NamedTuple):
    """A part of the way of a call: on a link, among so many ranks, each with `share` of it."""

    link: str
    ranks: int
    share: float = 1.0


class Clocked(Around):
    """A `Comm` whose calls take their time on the clock, on some ways, one after the other.

    They cost what rings cost, and broadcasts what a tree does.
    """

    def __init__(self, comm: Comm, clock: Clock, *ways: Way) -> None:
        super().__init__(comm)
        self._clock, self._ways = clock, ways
        self._prices = {
            (way, name): price(make(way.ranks), switch(LINKS[way.link]))
            for way in ways
            for name, make in ALGORITHMS.items()
        }

    def around(self, name: str, full: Tensor, call: Start, async_op: bool) -> Pending:
        """Make the call, and note what it sends and when it ends."""
        call(False)
        seconds = 0.0
        for way in self._ways:
            nbytes = full.nbytes * way.share
            seconds += self._prices[way, name](nbytes)
            self._clock.sent += round(HALVES[name] * nbytes * (way.ranks - 1) / way.ranks)
        end = self._clock.carry([way.link for way in self._ways], seconds)
        work = ClockedWork(self._clock, end)
        if async_op:
            return work
        work.wait()
        return None


class Cluster:
    """A rank's view of the cluster: what it talks through, and what it reads.

    Attributes:
        rank, ranks: of the whole cluster; ranks 0 and 1 are node 0, ranks 2 and 3 are node 1.
        world: a `Comm` of all ranks. A call goes inside the nodes, then between them, where each
            rank has its part of the node's bytes, as in `hierarchical_all_reduce`.
        node: a `Comm` of the ranks of this node, on fast links.
        across: a `Comm` of the ranks that have this one's place on each node, on slow links.
    """

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        if self.ranks != task.RANKS:
            raise ValueError(f"rank {self.rank}: expected {task.RANKS} ranks, got {self.ranks}")
        self.clock = Clock()
        local, nodes = task.MACHINE.per_node, self.ranks // task.MACHINE.per_node
        across, node = init_device_mesh("cpu", (nodes, local)).get_all_groups()
        inside, between = Way("inside", local), Way("between", nodes)
        self.world = self._comm(None, inside, between._replace(share=1 / local))
        self.node = self._comm(node, inside)
        self.across = self._comm(across, between)
        self.read: list[int] = []  # the numbers of the rows that this rank has read in the step

    def _comm(self, group: dist.ProcessGroup | None, *ways: Way) -> Clocked:
        return Clocked(Ours(group, algorithm="shared_memory", check=False), self.clock, *ways)

    def rows(self, step: int, part: int, parts: int) -> Tensor:
        """Read a part of a step's rows: parts count from 0, and are equally long."""
        each = task.ROWS // parts
        self.read += range(part * each, (part + 1) * each)
        return task.rows(step, part, parts)

    def emulate(self, net: Any) -> None:
        """Let the layers of the GPT take their time on the clock."""
        for block in net.blocks:
            block.register_forward_hook(partial(self._compute, task.BLOCK_OPERATIONS))
        net.head.register_forward_hook(partial(self._compute, 2 * net.head.weight.numel()))

    def _compute(self, per_token: int, _: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Any:
        """Let a layer's forward take so many operations for each token."""
        tokens = inputs[0].shape[:-1].numel()
        return working(output, self.clock.compute, tokens * per_token / task.MACHINE.flops)
