"""Inputs of the formulas: bytes of a parameter, a model, a GPU, and a step of training.

In the page of a slider these are plain objects with the same attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Each(NamedTuple):
    """Bytes of one parameter."""

    weights: int
    gradients: int
    master: int  #: of a finer copy of the weights, 0 if there is none
    moments: float  #: all that the optimizer keeps of it, together; Muon's on average
    compute: int  #: as forward and backward use it, and as FSDP gathers it
    update: float  #: of AdamW's temporary, which updates all parameters at a time


class Shape(NamedTuple):
    """Sizes of a model; those of activations are in elements, and per sample."""

    parameters: int  #: of the whole model
    units: int  #: equal blocks, which FSDP shards one at a time
    largest_unit: int  #: parameters of one of them
    operations: float  #: of the forward pass of one sample
    activations: float  #: that the forward pass keeps, without the loss
    activations_checkpointed: float  #: the same if each block keeps only its input
    outputs: float  #: of which a loss is computed, such as logits
    width: int  #: numbers of a token between two blocks
    tokens: int = 1  #: of a sample
    stream: float = 0.0  #: what autocast keeps besides: norms' inputs in fp32, outputs repeatedly
    stream_checkpointed: float = 0.0  #: the same if each block keeps only its input
    attention: float = 0.0  #: of the operations, those of causal attention
    head: float = 0.0  #: of the operations, those after the blocks
    before: Sequence[int] = ()  #: elements of each parameter that forward uses before the blocks
    block: Sequence[int] = (1, 1, 1)  #: of each parameter of a block, in its order
    after: Sequence[int] = ()  #: of each parameter after them
    uneven: float = 1.0  #: compute of the slowest rank, of a pipeline, over the average of all
    activations_selective: float = 0.0  #: if each block keeps what matrices and attention made
    stream_selective: float = 0.0  #: the same of `stream`
    keys: float = 0.0  #: numbers of the keys and values of all blocks
    routed: float = 0.0  #: numbers that go to experts, in all blocks, and come back
    experts: int = 0  #: of the parameters, those of experts among which a router chooses
    matrices: Sequence[Sequence[int]] = ()  #: of a block: rows, columns, count; experts' last


class Gpu(NamedTuple):
    """A GPU and the links that it has to others, at their peak."""

    name: str  #: as its vendor calls it
    flops: float  #: dense bf16 operations a second
    memory: float  #: bytes of it
    bandwidth: float  #: of its memory, bytes a second
    nvlink: float  #: to GPUs of its node, bytes a second in each direction
    network: float  #: of its own network card, bytes a second in each direction
    generation: str = ""  #: of which NCCL knows the limits; "": rings on links with the latencies
    per_node: int = 8  #: GPUs that NVLink joins
    utilization: float = 0.5  #: the part of `flops` that training reaches if the model is wide
    half_width: float = 0.0  #: of a model that reaches half of that
    attention: float = 1.0  #: the part of that rate which causal attention reaches
    nvlink_latency: float = 0.0  #: seconds of a message, where there is no generation
    network_latency: float = 0.0  #: the same between nodes


@dataclass(frozen=True)
class TrainingStep:
    """A training step on ranks in nodes; a strategy completes it.

    Attributes:
        sizes: of the model, or of a rank's part of one that is split.
        gpu: of each rank.
        each: bytes of a parameter.
        local: ranks of a node.
        nodes: how many.
        batch: samples of a rank, of all its micro-batches together.
        checkpointing: the share of blocks that compute forward twice.
        bucket_cap_mb: MiB that close a bucket of DDP or ZeRO.
        views: whether gradients are views of DDP's buckets.
        fused_loss: whether one kernel takes logits to their loss and makes their gradients.
        curve: (bytes, seconds) of an all-reduce over all ranks, as measured; empty: NCCL's model.
        tensor: ranks that split each layer.
        pipeline: ranks that split the blocks.
        micro_batches: of a step.
        interleaved: stages of each rank of a pipeline.
        limit: bytes that may be used of each GPU.
        order: of a pipeline's work: "1f1b", "zero_bubble" or "dualpipe".
        context: ranks that split each sequence; they are among those that share the state.
        expert: ranks that split the experts, among the same.
        accumulated: micro-batches that follow each other without a pipeline, each of `batch`.
        selective: whether these keep what their matrices and attention made, and compute the rest.
        faster: how many times as fast as in bf16 the blocks' matrices are, such as in fp8.
        muon: whether the blocks' matrices are orthogonalized in the update.
        nearer: "data" or "pipeline", as in `Grid`.
    """

    sizes: Shape
    gpu: Gpu
    each: Each
    local: int = 1
    nodes: int = 1
    batch: int = 1
    checkpointing: float = 0.0
    bucket_cap_mb: float = 25
    views: bool = False
    fused_loss: bool = False
    curve: Sequence[tuple[float, float]] = ()
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    interleaved: int = 1
    limit: float = 0.0
    order: str = "1f1b"
    context: int = 1
    expert: int = 1
    accumulated: int = 1
    selective: bool = False
    faster: float = 1.0
    muon: bool = False
    nearer: str = "data"

    @property
    def ranks(self) -> int:
        """All ranks that share the batch."""
        return self.local * self.nodes


class Grid(NamedTuple):
    """A way to place the training of a model on ranks, and to order a step's work on them."""

    strategy: str  #: of the replicas, as `formulas.step.SENDS` has them
    data: int  #: replicas, each with its own samples
    tensor: int = 1  #: ranks that split each layer
    pipeline: int = 1  #: ranks that split the blocks
    context: int = 1  #: ranks that split each sequence
    expert: int = 1  #: ranks that split the experts; they are among data and context
    batch: int = 1  #: samples of a micro-batch
    interleaved: int = 1  #: stages of each rank of a pipeline
    order: str = "1f1b"  #: of a pipeline's work; or "zero_bubble", "dualpipe"
    recompute: str = "none"  #: or "selective", or "full"
    nearer: str = "data"  #: or "pipeline": whose ranks come first in a node: `grids`


ORDERS = ("1f1b", "zero_bubble", "dualpipe")  # of a pipeline's work


class Question(NamedTuple):
    """What a search is about."""

    sizes: Any  #: a `Shape`
    gpu: Gpu
    each: Each
    ranks: int
    samples: int  #: of a step, of all ranks together
    limit: float  #: bytes that may be used of each GPU
    fused_loss: bool = False
    orders: Sequence[str] = ORDERS  #: that a pipeline may have
    contexts: int = 64  #: ranks that may split a sequence
    faster: float = 1.0  #: how many times as fast as in bf16 the blocks' matrices are
    ways: Sequence[str] = ("single", "ddp", "zero1", "fsdp_kept", "fsdp", "hsdp")  #: strategies
    muon: bool = False  #: whether the blocks' matrices are orthogonalized in the update
