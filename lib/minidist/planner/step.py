"""A training step in closed form: what a rank holds, sends and takes under each strategy.

Memory: the state, of which each stage of ZeRO shards more; what is unsharded for part of a step;
activations. Time: a step computes, reads and writes memory, and communicates. Links cost what
`minidist.schedule.cost` says, with rings inside the nodes and rings between them, as in
`hierarchical_all_reduce`: ranks at the same place of each node share a ring of their own.

[Note: overlap] Computing and communicating take turns with n pieces (buckets, or units): the first
piece of one has nothing to overlap with, and neither has the last piece of the other. If both run
at a steady rate, together they take max(a + b/n, a/n + b): with many pieces the longer of the two,
with one piece the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from minidist.memory.state import DtypePolicy, Strategy, share, state
from minidist.parallel.sharding.partition import MIB
from minidist.planner.hardware import Accelerator
from minidist.planner.sizes import Sizes
from minidist.schedule.cost import Link

ALL, NODE, NODES = "all ranks", "ranks of a node", "nodes"
WEIGHTS, GRADIENTS = ("weights", ALL), ("gradients", ALL)
BETWEEN = ("gradients", NODES)
# What is all-gathered or reduce-scattered, and over which ranks: in forward, in backward, and after
# it, which overlaps with nothing. ZeRO-1 averages gradients in the optimizer's step.
SENDS: dict[Strategy, tuple[tuple[tuple[str, str], ...], ...]] = {
    Strategy.SINGLE: ((), (), ()),
    Strategy.DDP: ((), (GRADIENTS, GRADIENTS), ()),
    Strategy.ZERO1: ((), (), (GRADIENTS, WEIGHTS)),
    Strategy.ZERO2: ((), (GRADIENTS,), (WEIGHTS,)),
    Strategy.FSDP: ((WEIGHTS,), (WEIGHTS, GRADIENTS), ()),
    Strategy.HSDP: (
        (("weights", NODE),),
        (("weights", NODE), ("gradients", NODE), BETWEEN, BETWEEN),
        (),
    ),
}

# ---- what it takes to communicate ----


def into_nodes(ranks: int, per_node: int) -> tuple[int, int]:
    """Ranks of a node, and nodes.

    A node that is not full breaks the rings of the hierarchy. Then smaller groups, of which every
    node has a whole number, count as nodes.
    """
    local = ranks if ranks <= per_node else math.gcd(ranks, per_node)
    return local, ranks // local


class Cost(NamedTuple):
    """What communication takes of each rank."""

    seconds: float = 0.0  #: one message after the other
    sent: float = 0.0  #: bytes
    messages: int = 0  #: in which they are sent


def total(costs: Iterable[Cost]) -> Cost:
    """One after the other."""
    found = list(costs)
    return Cost(
        sum(each.seconds for each in found),
        sum(each.sent for each in found),
        sum(each.messages for each in found),
    )


def ring(nbytes: float, ranks: int, link: Link, calls: int = 1) -> Cost:
    """All-gathers or reduce-scatters of `nbytes` bytes together, each a ring over such links."""
    hops, sent = calls * (ranks - 1), nbytes * (ranks - 1) / ranks
    return Cost(hops * link.alpha + sent * link.beta, sent, hops)


# ---- a step ----


class Memory(NamedTuple):
    """Bytes that a rank holds of each part of a step."""

    weights: float  #: as they are used, sharded under FSDP
    gradients: float  #: whole, or this rank's shard
    optimizer: float  #: master weights and moments
    unsharded: float  #: the most for part of a step, of units or of buckets in flight
    activations: float  #: of the micro-batch
    at_begin: float  #: what of `unsharded`, or of DDP's buckets, is there as backward begins

    @property
    def always(self) -> float:
        """What is there all through a step."""
        return self.weights + self.optimizer

    @property
    def peak(self) -> float:
        """All activations as backward begins, or all gradients as it ends."""
        return self.always + max(self.at_begin + self.activations, self.unsharded + self.gradients)


class Phases(NamedTuple):
    """Three parts of a step: forward, backward, and the optimizer's step with what follows it."""

    forward: float  #: seconds
    backward: float  #: seconds
    update: float  #: seconds


@dataclass(frozen=True)
class TrainingStep:
    """A training step of a model on ranks in nodes; each strategy is a forecast of it."""

    sizes: Sizes
    gpu: Accelerator  #: of each rank
    local: int  #: ranks of a node
    nodes: int
    batch: int
    policy: DtypePolicy
    optimizer: str
    checkpointing: bool
    bucket_cap_mb: float = 25

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.local * self.nodes

    def shards(self, strategy: Strategy) -> int:
        """How many ranks share what the strategy shards."""
        return self.local if strategy == Strategy.HSDP else self.ranks

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of all weights and of all gradients, as they are used and sent."""
        each = self.policy.weights.itemsize, self.policy.gradients.itemsize
        return self.sizes.parameters * each[0], self.sizes.parameters * each[1]

    @property
    def bucket(self) -> int:
        """Bytes of a bucket of gradients; of a block the largest matrix has about a third."""
        matrix = self.sizes.largest_unit // 3 * self.policy.gradients.itemsize
        return int(min(self.nbytes[1], max(self.bucket_cap_mb * MIB, matrix)))

    def memory(self, strategy: Strategy) -> Memory:
        """Bytes on a rank. DDP's gradients are views of its buckets, which are always there."""
        held = share(
            state(self.sizes.parameters, self.policy, self.optimizer),
            self.shards(strategy),
            strategy.stage,
        )
        weight, gradient = self.policy.weights.itemsize, self.policy.gradients.itemsize
        unit, rest = self.sizes.largest_unit, self.sizes.rest
        unsharded = at_begin = 0
        if strategy == Strategy.DDP:
            at_begin = held.gradients
        elif strategy == Strategy.ZERO1:  # which packs its gradients for the optimizer's step
            unsharded = self.bucket
        elif strategy == Strategy.ZERO2:
            # One is filled, one is reduced, and autograd makes one gradient more.
            flat = min(2 * self.bucket, self.nbytes[1])
            unsharded = at_begin = flat + unit // 3 * gradient
        elif strategy.stage == 3:
            # The outermost unit and its gradients; a unit and its gradients, the next one's
            # weights on their way, and the gradients of the one before it as they are sent.
            outer, neighbours = rest * 2 * weight, self.sizes.units > 1
            at_begin = outer + unit * (2 + neighbours) * weight
            unsharded = at_begin + unit * neighbours * gradient
        kept = self.sizes.activations_checkpointed if self.checkpointing else self.sizes.activations
        activations = self.batch * kept * weight
        return Memory(
            held.weights, held.gradients, held.optimizer, unsharded, activations, at_begin
        )

    def traffic(self, strategy: Strategy) -> tuple[Cost, Cost, Cost]:
        """What `SENDS` costs during forward, during backward, and after it."""
        nbytes = dict(zip(("weights", "gradients"), self.nbytes, strict=True))
        ring = {ALL: self.half, NODE: self.inside, NODES: self.between}
        calls = self.pieces(strategy)
        forward, backward, update = (
            total(ring[over](nbytes[part], calls) for part, over in phase)
            for phase in SENDS[strategy]
        )
        return forward, backward, update

    def pieces(self, strategy: Strategy) -> int:
        """How many buckets or units are sent one by one."""
        if strategy.stage == 3:
            return self.sizes.units + (self.sizes.rest > 0)
        return math.ceil(self.nbytes[1] / self.bucket)

    def half(self, nbytes: float, calls: int) -> Cost:
        """A reduce-scatter or an all-gather over all ranks: half of an all-reduce."""
        return total((self.inside(nbytes, calls), self.between(nbytes, calls)))

    def inside(self, nbytes: float, calls: int) -> Cost:
        """The part of it inside the nodes."""
        link = Link(self.gpu.nvlink_latency, 1 / self.gpu.nvlink)
        return ring(nbytes, self.local, link, calls)

    def between(self, nbytes: float, calls: int) -> Cost:
        """The part of it between nodes, where each rank has a part of the node's bytes."""
        link = Link(self.gpu.network_latency, 1 / self.gpu.network)
        return ring(nbytes / self.local, self.nodes, link, calls)

    def operations(self) -> Phases:
        """Seconds of computing; backward does twice the operations of forward."""
        rate = self.gpu.flops * self.gpu.utilization
        forward = self.batch * self.sizes.operations / rate
        return Phases(forward, (2 + self.checkpointing) * forward, 0.0)

    def memory_traffic(self, strategy: Strategy) -> Phases:
        """Seconds of reading weights, writing gradients, and the optimizer's reads and writes.

        It reads a gradient, reads and writes what it updates and its moments, and writes the
        weights, if they are another copy.
        """
        weights, gradients = self.nbytes
        held = state(self.sizes.parameters, self.policy, self.optimizer)
        updated = 2 * held.master + held.weights if held.master else 2 * held.weights
        moved = held.gradients + 2 * held.moments + updated
        mine = self.shards(strategy) if strategy.stage else 1
        return Phases(
            weights / self.gpu.bandwidth,
            ((1 + self.checkpointing) * weights + gradients) / self.gpu.bandwidth,
            moved / mine / self.gpu.bandwidth,
        )


def with_overlap(computing: float, communicating: float, pieces: int) -> float:
    """Seconds of both, in so many pieces: see [Note: overlap]."""
    return max(
        computing + communicating / pieces,
        computing / pieces + communicating,
    )
