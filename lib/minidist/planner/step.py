"""A training step in closed form: what a rank holds, sends and takes under each strategy.

Memory: the state, of which each stage of ZeRO shards more; what is unsharded for part of a step;
activations. Time: a step computes, reads and writes memory, and communicates. Links cost what
`minidist.schedule.cost` says, with rings inside the nodes and rings between them, as in
`hierarchical_all_reduce`: ranks at the same place of each node share a ring of their own.

[Note: memory] Backward begins with all activations: of each output of the model there are the
number itself and, in fp32, its log-probability and the gradient of that; a fused loss has but the
number and its gradient, in the compute dtype. Autocast keeps a copy of
the weights in the compute dtype until backward has used it, and what norms read in fp32; FSDP
gathers the weights in the compute dtype, and computes in nothing else. Backward ends with all
gradients. Then AdamW updates all parameters at a time (`foreach`), with a temporary as large as one
of its moments. DDP's buckets are there all the time, beside the gradients or as their memory.

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
from minidist.planner.measured import AllReduceTimes
from minidist.planner.sizes import Sizes
from minidist.planner.split import WHOLE, Split
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
    at_begin: float  #: what of `unsharded`, or of gradients, is there as backward begins
    buckets: float  #: of DDP, if gradients are no views of them
    update: float  #: what the optimizer needs while it updates

    @property
    def always(self) -> float:
        """What is there all through a step."""
        return self.weights + self.optimizer + self.buckets

    @property
    def ends(self) -> float:
        """What gradients take as backward ends or as the optimizer updates, if that is more."""
        return self.gradients + max(self.unsharded, self.update)

    @property
    def peak(self) -> float:
        """All activations as backward begins, or all gradients afterwards."""
        return self.always + max(self.at_begin + self.activations, self.ends)


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
    checkpointing: float  #: the share of blocks that compute forward twice
    bucket_cap_mb: float = 25
    gradient_as_bucket_view: bool = False
    foreach: bool = True
    fused_loss: bool = False
    all_reduce: AllReduceTimes | None = None  #: as measured over the ranks
    split: Split = WHOLE  #: of the model whose part `sizes` are

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.local * self.nodes

    def shards(self, strategy: Strategy) -> int:
        """How many ranks share what the strategy shards."""
        return self.local if strategy == Strategy.HSDP else self.ranks

    def nbytes(self, strategy: Strategy) -> tuple[int, int]:
        """Bytes of all weights and of all gradients, as they are sent.

        FSDP gathers weights in the dtype in which they compute.
        """
        weights = self.policy.computes if strategy.stage == 3 else self.policy.weights
        count = self.sizes.parameters
        return count * weights.itemsize, count * self.policy.gradients.itemsize

    @property
    def bucket(self) -> int:
        """Bytes of a bucket of gradients; of a block the largest matrix has about a third."""
        each = self.policy.gradients.itemsize
        largest = max(self.bucket_cap_mb * MIB, self.sizes.largest_unit // 3 * each)
        return int(min(self.sizes.parameters * each, largest))

    def memory(self, strategy: Strategy) -> Memory:
        """Bytes on a rank: see [Note: memory]."""
        policy, unit, rest = self.policy, self.sizes.largest_unit, self.sizes.rest
        count, shards = self.sizes.parameters, self.shards(strategy)
        held = share(state(count, policy, self.optimizer), shards, strategy.stage)
        used, gradient = policy.computes.itemsize, policy.gradients.itemsize
        unsharded = buckets = 0
        cast = at_begin = used * count if used < policy.weights.itemsize else 0
        if strategy == Strategy.DDP:
            views = self.gradient_as_bucket_view
            buckets, at_begin = 0 if views else held.gradients, cast + views * held.gradients
        elif strategy == Strategy.ZERO1:  # which packs its gradients for the optimizer's step
            unsharded = self.bucket
        elif strategy == Strategy.ZERO2:
            # One is filled, one is reduced, and autograd makes one gradient more.
            flat = min(2 * self.bucket, gradient * count)
            unsharded = flat + unit // 3 * gradient
            at_begin = cast + unsharded
        elif strategy.stage == 3:
            # The outermost unit and its gradients; a unit and its gradients, the next one's
            # weights on their way, and the gradients of the one before it as they are sent.
            neighbours = self.sizes.units > 1
            at_begin = rest * 2 * used + unit * (2 + neighbours) * used
            unsharded = at_begin + unit * neighbours * gradient
        updated = count / (shards if strategy.stage else 1)
        update = policy.moments.itemsize * updated * (self.foreach and self.optimizer == "adam")
        return Memory(
            held.weights, held.gradients, held.optimizer, unsharded,
            self.batch * self.activations(strategy), at_begin, buckets, update,
        )  # fmt: skip

    def activations(self, strategy: Strategy) -> float:
        """Bytes that forward keeps of a sample, with the loss: see [Note: memory]."""
        sizes, again, used = self.sizes, self.checkpointing, self.policy.computes.itemsize
        kept = (1 - again) * sizes.activations + again * sizes.activations_checkpointed
        wider = 0 if strategy.stage == 3 else max(0, self.policy.weights.itemsize - used)
        entry = sizes.width * sizes.tokens  # a block's input, which a checkpoint keeps
        inside = (sizes.units - 1) * max(0, (sizes.stream - entry) / sizes.units - entry)
        output = 2 * used if self.fused_loss else used + 8
        return used * kept + wider * (sizes.stream - again * inside) + output * sizes.outputs

    def traffic(self, strategy: Strategy) -> tuple[Cost, Cost, Cost]:
        """What `SENDS` costs during forward, during backward, and after it."""
        nbytes = dict(zip(("weights", "gradients"), self.nbytes(strategy), strict=True))
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
        return math.ceil(self.nbytes(strategy)[1] / self.bucket)

    def half(self, nbytes: float, calls: int) -> Cost:
        """A reduce-scatter or an all-gather over all ranks: half of an all-reduce."""
        curve = self.all_reduce
        if curve and curve.ranks == self.ranks:
            sent, messages = nbytes * (self.ranks - 1) / self.ranks, calls * (self.ranks - 1)
            return Cost(calls * curve.seconds(nbytes / calls) / 2, sent, messages)
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
        rate = self.gpu.rate(self.sizes.width * self.split.tensor)  # of the whole model
        forward = self.batch * self.sizes.operations / rate
        return Phases(forward, (2 + self.checkpointing) * forward, 0.0)

    def tensor_parallel(self) -> Cost:
        """Activations: before and after each half of a block an all-gather or a reduce-scatter."""
        ranks, gpu = self.split.tensor, self.gpu
        near = Link(gpu.nvlink_latency, 1 / gpu.nvlink)
        link = near if ranks <= gpu.per_node else Link(gpu.network_latency, 1 / gpu.network)
        halves = 4 * (2 + self.checkpointing) * self.sizes.units  # forward, backward, forward again
        tokens, width = self.batch * self.sizes.tokens, self.sizes.width * ranks
        nbytes = halves * tokens * width * self.policy.computes.itemsize
        return ring(nbytes, ranks, link, round(halves * self.split.micro_batches))

    def borders(self) -> Cost:
        """What a rank inside a pipeline sends: each stage's activations, and gradients."""
        if self.split.pipeline == 1:
            return Cost()
        messages = 2 * self.split.interleaved * self.split.micro_batches
        numbers = 2 * self.split.interleaved * self.batch * self.sizes.tokens * self.sizes.width
        return Cost(0.0, numbers * self.policy.computes.itemsize, messages)

    def memory_traffic(self, strategy: Strategy) -> Phases:
        """Seconds of reading weights, writing gradients, and the optimizer's reads and writes.

        It reads a gradient, reads and writes what it updates and its moments, and writes the
        weights, if they are another copy.
        """
        weights, gradients = self.nbytes(strategy)
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
