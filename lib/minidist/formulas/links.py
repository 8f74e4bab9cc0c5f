"""Seconds of a collective: by NCCL's cost model at line rate, by a measured curve, or by rings."""

from __future__ import annotations

import math

from minidist.formulas import nccl

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Sequence

    from minidist.formulas.inputs import Gpu, TrainingStep

HALVES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}  # halves of an all-reduce


def priced(name: str, size: float, nodes: int, local: int, gpu: Gpu) -> float:
    """Seconds of a collective on a full tensor of `size` bytes, by what is known of the links."""
    if gpu.generation == "":
        return rings(name, size, nodes, local, gpu)
    return nccl.seconds(name, size, nodes, local, gpu)


def rings(name: str, size: float, nodes: int, local: int, gpu: Gpu) -> float:
    """Seconds of rings inside the nodes, and then between ranks of one place on each of them.

    As the schedule `hierarchical_all_reduce` costs on links of known latency, or half of that.
    """
    inside = (local - 1) * (gpu.nvlink_latency + size / local / gpu.nvlink)
    between = (nodes - 1) * (gpu.network_latency + size / local / nodes / gpu.network)
    return HALVES[name] * (inside + between)


def collective(step: TrainingStep, name: str, size: float, over: str = "ranks") -> float:
    """Seconds of a collective on a tensor of `size` bytes over all ranks, a node's, or the nodes'.

    Ranks at the same place of each node share a ring of their own, and a part of the bytes.
    """
    if over == "node":
        return priced(name, size, 1, step.local, step.gpu)
    if over == "nodes":
        return priced(name, size / step.local, step.nodes, 1, step.gpu)
    if len(step.curve) > 0:
        return HALVES[name] / 2 * measured(step.curve, size)
    return priced(name, size, step.nodes, step.local, step.gpu)


def collectives(step: TrainingStep, name: str, sizes: Sequence[float]) -> list[float]:
    """Seconds of a collective on each of these tensors, in bytes; equal ones are priced once."""
    known: dict[float, float] = {}
    for size in sizes:
        if size not in known:
            known[size] = collective(step, name, size)
    return [known[each] for each in sizes]


def straight(step: TrainingStep, size: float, receivers: int) -> float:
    """Seconds until each rank has sent its `size` bytes straight to `receivers`, a part to each.

    With as many receivers as ranks it is an all-to-all, or a reduce-scatter without a ring; with
    one, all that reaches a root. The busiest link sets the pace, a GPU's NVLink or its own network
    card, and latencies are left out: the bytes of a node's ranks leave it one by one, each time.
    """
    outside = (step.local * step.nodes - step.local) / step.gpu.network
    inside = (step.local - 1) / step.gpu.nvlink
    return size / receivers * max(outside, inside)


def message(gpu: Gpu, size: float, inside: bool = False) -> float:
    """Seconds of one message of `size` bytes to another node, as a step of NCCL's ring over it.

    `inside`: to a GPU of the same node.
    """
    if inside is True:
        return 1e-6 * nccl.NVLINK_LATENCIES["ring"]["Simple"] + size / gpu.nvlink
    return 1e-6 * nccl.NETWORK_LATENCIES["ring"]["Simple"] + size / gpu.network


def measured(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Seconds of an all-reduce by a measured `curve` of (bytes, seconds), straight in between.

    Straight, that is, on logarithmic scales. Smaller messages take as long as the smallest one, and
    larger ones have the bandwidth of the largest.
    """
    low, high = curve[0], curve[0]
    if size <= low[0]:
        return low[1]
    for point in curve:
        low, high = high, point
        if size <= high[0]:
            share = math.log(size / low[0]) / math.log(high[0] / low[0])
            return math.exp(math.log(low[1]) + share * math.log(high[1] / low[1]))
    return high[1] * size / high[0]


def into_nodes(ranks: int, gpu: Gpu, tensor: int = 1, pipeline: int = 1) -> tuple[int, int]:
    """Replicas of a model in a node, and nodes, if each replica is split among ranks.

    A node that is not full breaks the rings of a hierarchy. Then smaller groups, of which every
    node has a whole number, count as nodes. Or each node has as many as a power of two, if more of
    the ranks meet in one then: 128 take 64 of the 72 GPUs that NVLink joins in two racks.
    """
    full = max(1, gpu.per_node // tensor)
    replicas = ranks // (tensor * pipeline)
    if replicas <= full:
        return replicas, 1
    local = max(common(replicas, full), common(replicas, even(full)))
    return local, replicas // local


def even(full: int) -> int:
    """The largest power of two that is no more than a full node's ranks."""
    found = 1
    while 2 * found <= full:
        found = 2 * found
    return found


def common(one: int, other: int) -> int:
    """The largest number that divides both."""
    found, rest = one, other
    while rest > 0:
        found, rest = rest, found - found // rest * rest
    return found
