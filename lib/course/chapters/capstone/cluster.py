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

from collections.abc import Callable, Sequence
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

Ask = Callable[..., Any]  # asks a `Keeper`, here or over a line

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

    def wait(self, end: float) -> None:
        """Let the rank wait, if it is not later already."""
        self.now = max(self.now, end)

    def carry(self, links: Sequence[str], seconds: float, nbytes: int = 0) -> float:
        """Give something to links that it needs all at once; when it will be there."""
        self.sent += nbytes
        start = max([self.now, *(self.links.free(each) for each in links)])
        return max(self.links.do(each, "carry", start, seconds) for each in links)


class Keeper:
    """First weights, rows and clocks of all ranks, from one seed.

    It lives where a run does; in a rerun, in the grader's process, out of the run's reach.
    """

    def __init__(self, seed: int = task.SEED) -> None:
        self._seed, self._weights = seed, task.model(seed).state_dict()
        self._clocks = [Clock() for _ in range(task.RANKS)]
        self._read: list[list[int]] = [[] for _ in range(task.RANKS)]

    def ask(self, name: str, *args: Any) -> Any:
        """The answer to a rank: that of the method with this name."""
        return getattr(self, name)(*args)

    def weights(self) -> dict[str, Tensor]:
        """The model's first weights, by name."""
        return self._weights

    def rows(self, rank: int, step: int, part: int, parts: int) -> Tensor:
        """A part of a step's rows, of which it is noted that this rank has read them."""
        each = task.ROWS // parts
        self._read[rank] += range(part * each, (part + 1) * each)
        return task.rows(step, part, parts, self._seed)

    def read(self, rank: int) -> list[int]:
        """The numbers of the rows that the rank has read since it was last asked."""
        found, self._read[rank] = self._read[rank], []
        return found

    def clock(self, rank: int, name: str, *args: Any) -> Any:
        """A number on a rank's clock, or what a method of it returns."""
        found = getattr(self._clocks[rank], name)
        return found(*args) if args else found


class RanksClock:
    """A rank's clock, which its keeper has."""

    def __init__(self, ask: Ask, rank: int) -> None:
        self._on = partial(ask, "clock", rank)

    @property
    def now(self) -> float:
        """The rank's time."""
        return float(self._on("now"))

    @property
    def sent(self) -> int:
        """The bytes that it has sent."""
        return int(self._on("sent"))

    def compute(self, seconds: float) -> None:
        """Let the rank compute."""
        self._on("compute", seconds)

    def wait(self, end: float) -> None:
        """Let the rank wait."""
        self._on("wait", end)

    def carry(self, links: Sequence[str], seconds: float, nbytes: int) -> float:
        """Give something to links; when it will be there."""
        return float(self._on("carry", [*links], seconds, nbytes))


class ClockedWork(NamedTuple):
    """The handle of a call whose result is there, and on the clock will be at `end`."""

    clock: RanksClock
    end: float
    span: None = None

    def wait(self) -> bool:
        """Return True; it is then `end`, or later."""
        self.clock.wait(self.end)
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

    def __init__(self, comm: Comm, clock: RanksClock, *ways: Way) -> None:
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
        seconds, sent = 0.0, 0
        for way in self._ways:
            nbytes = full.nbytes * way.share
            seconds += self._prices[way, name](nbytes)
            sent += round(HALVES[name] * nbytes * (way.ranks - 1) / way.ranks)
        end = self._clock.carry([way.link for way in self._ways], seconds, sent)
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

    def __init__(self, ask: Ask) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        if self.ranks != task.RANKS:
            raise ValueError(f"rank {self.rank}: expected {task.RANKS} ranks, got {self.ranks}")
        self._ask, self.clock = ask, RanksClock(ask, self.rank)
        local, nodes = task.MACHINE.per_node, self.ranks // task.MACHINE.per_node
        across, node = init_device_mesh("cpu", (nodes, local)).get_all_groups()
        inside, between = Way("inside", local), Way("between", nodes)
        self.world = self._comm(None, inside, between._replace(share=1 / local))
        self.node = self._comm(node, inside)
        self.across = self._comm(across, between)

    def _comm(self, group: dist.ProcessGroup | None, *ways: Way) -> Clocked:
        return Clocked(Ours(group, algorithm="shared_memory", check=False), self.clock, *ways)

    def rows(self, step: int, part: int, parts: int) -> Tensor:
        """Read a part of a step's rows: parts count from 0, and are equally long."""
        rows: Tensor = self._ask("rows", self.rank, step, part, parts)
        return rows

    def emulate(self, net: Any) -> None:
        """Let the layers of the GPT take their time on the clock."""
        for block in net.blocks:
            block.register_forward_hook(partial(self._compute, task.BLOCK_OPERATIONS))
        net.head.register_forward_hook(partial(self._compute, 2 * net.head.weight.numel()))

    def _compute(self, per_token: int, _: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Any:
        """Let a layer's forward take so many operations for each token."""
        tokens = inputs[0].shape[:-1].numel()
        return working(output, self.clock.compute, tokens * per_token / task.MACHINE.flops)
