"""NCCL's own cost model of a collective, at line rate.

From NVIDIA/nccl 2.30.7, `src/graph/tuning.cc`; "L" is about the line of that file. NCCL adds
latency and bytes over bandwidth for every algorithm and protocol and takes the least. The
bandwidth that its graph search finds (channels times bandwidth per channel) is replaced by the
line rate: NVLink's in a node, that of a node's network cards between nodes. Left out: NVLS,
NVLSTree and CollNet (switches that add), PAT (only with one GPU per node), PCIe instead of
NVLink. Bytes and seconds throughout; the tables keep NCCL's microseconds and GB/s.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from typing import Any

    from minidist.formulas.inputs import Gpu

PROTOCOLS = ["LL", "LL128", "Simple"]
ALGORITHMS = {  # the order in which NCCL tries them: of equals the first is taken
    "all_reduce": ["tree", "ring"],
    "all_gather": ["ring"],
    "reduce_scatter": ["ring"],
}

# Microseconds of any call: baseLatencies, L151.
BASE_LATENCIES = {
    "tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4},
    "ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4},
}

# Microseconds per step: hwLatencies, NVLink L159, network L171.
NVLINK_LATENCIES = {
    "tree": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0},
    "ring": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4},
}
NETWORK_LATENCIES = {
    "tree": {"LL": 5.0, "LL128": 8.5, "Simple": 14.0},
    "ring": {"LL": 2.7, "LL128": 4.0, "Simple": 14.0},
}

# Microseconds that the host needs to post a step of a ring over several nodes, by its CPU, and how
# many times that per protocol: getNetOverhead, and L405 to L410.
CPU = "intel"  # as in a DGX H100, for all GPUs here; a DGX A100 has "amd"
POST_LATENCY = {"intel": 1.0, "amd": 2.0}
POSTS = {"LL": 1, "LL128": 1, "Simple": 3}

# Bus bandwidth of LL at most, GB/s: llMaxBws, L179 to L182. In a node by GPU; between nodes (two,
# more than two) by CPU: index1 looks at the GPU only if there is one node, so the table's 45 and 35
# for Hopper on several nodes are never read.
LL_LIMIT_IN_NODE = {"ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
LL_LIMIT_BETWEEN = {"intel": [39.0, 20.4], "amd": [22.5, 19.0]}

# Bus bandwidth per channel at most, GB/s, of trees on one node, two, more: perChMaxRingLL128Bws
# L186, perChMaxTreeLL128Bws L193, perChMaxTreeBws L200.
RING_LL128_LIMIT = {"ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
TREE_LL128_LIMIT = {
    "ampere": [20.0, 20.0, 20.0],
    "hopper": [36.7, 36.7, 29.0],
    "blackwell": [55.6, 31.67, 20.0],
}
TREE_LIMIT = {
    "ampere": [24.0, 23.6, 17.8],
    "hopper": [38.7, 41.4, 36.0],
    "blackwell": [70.0, 42.8, 24.0],
}
# Channels that the graph search finds, usual values for eight GPUs with a network card each: the
# limits above count these. An operation runs on twice as many, which the plateau below counts
# (comm->nChannels; nccl#1041).
CHANNELS_IN_NODE = {"ampere": 12, "hopper": 12, "blackwell": 16}
CHANNELS_BETWEEN = 8

# Parts of the bandwidth: L327 to L336.
RING_LL = 0.5  # half of the bytes are flags
RING_LL128 = 0.92  # NCCL's figure for 120 of 128 bytes
TREE = 0.92
TREE_LL = 1 / 3.8
TREE_LL128_IN_NODE = 7 / 9
TREE_LL128_BETWEEN = 120 / 128
TREE_ONE_GPU = 0.85  # the plain tree pattern, which the search takes with one GPU per node

# Parts of a tree's bandwidth by size, 64 B to 256 MiB in powers of two: treeCorrectionFactor, L623.
# fmt: off
TREE_CORRECTION = {
    "LL": [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
        0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0,
    ],
    "LL128": [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
        0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0,
    ],
    "Simple": [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
        0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9,
    ],
}
# fmt: on

# Plateau of Ring/Simple in an all-reduce over several nodes: a factor on its latency, from so many
# bytes per rank and channel; ncclTopoGetAlgoTime, L647 to L649.
PLATEAU = 1.4
PLATEAU_BYTES = 64


def floor_log2(number: float) -> int:
    """Logarithm to base 2, rounded down; NCCL's log2i."""
    power = 0
    while 2 ** (power + 1) <= number:
        power += 1
    return power


def ring_steps(collective: str, count: int) -> int:
    """Steps of a ring over so many ranks, or nodes; ncclTopoTuneModel, L289 and L411, 2.30."""
    return (2 if collective == "all_reduce" else 1) * (count - 1)


def line_rate(nodes: int, local: int, gpu: Gpu) -> float:
    """Rate of all channels together, bytes per second; in place of NCCL's graph search."""
    inside = float(gpu.nvlink)
    return inside if nodes == 1 else min(inside, local * float(gpu.network))


def ring_latency(collective: str, protocol: str, nodes: int, local: int) -> float:
    """Latency of a ring before its plateau, seconds; ncclTopoTuneModel, L384 to L412, 2.30."""
    inside = NVLINK_LATENCIES["ring"][protocol]
    between = 0.0
    if nodes > 1:
        inside = max(inside, POST_LATENCY[CPU] * POSTS[protocol])
        between = NETWORK_LATENCIES["ring"][protocol]
        if local == 1:  # fully exposed, L387
            between = NETWORK_LATENCIES["tree"][protocol]
    steps = ring_steps(collective, nodes * local)
    out = ring_steps(collective, nodes)
    return 1e-6 * (BASE_LATENCIES["ring"][protocol] + (steps - out) * inside + out * between)


def tree_latency(protocol: str, nodes: int, local: int) -> float:
    """Latency of a double tree between nodes and a chain in each, seconds; L416, 2.30."""
    inside = (local - 1) * NVLINK_LATENCIES["tree"][protocol]
    between = floor_log2(nodes) * NETWORK_LATENCIES["tree"][protocol]
    return 1e-6 * (BASE_LATENCIES["tree"][protocol] + 2 * (inside + between))


def ll_limit(nodes: int, gpu: Gpu) -> float:
    """Bus bandwidth of LL at most, bytes per second; llMaxBws with index1 and index2, 2.30."""
    if nodes == 1:
        return 1e9 * LL_LIMIT_IN_NODE[gpu.generation]
    return 1e9 * LL_LIMIT_BETWEEN[CPU][0 if nodes == 2 else 1]


def bus_bandwidth(algorithm: str, protocol: str, nodes: int, local: int, gpu: Gpu) -> float:
    """Bus bandwidth of an algorithm with a protocol, bytes per second; L327 to L336, 2.30."""
    rate = line_rate(nodes, local, gpu)
    several = min(nodes, 3) - 1
    channels = 1e9 * (CHANNELS_IN_NODE[gpu.generation] if nodes == 1 else CHANNELS_BETWEEN)
    if algorithm == "ring":
        if protocol == "LL":
            rate = min(RING_LL * rate, ll_limit(nodes, gpu))
        elif protocol == "LL128":
            rate = min(RING_LL128 * rate, channels * RING_LL128_LIMIT[gpu.generation])
        return rate
    rate = min(TREE * rate, channels * TREE_LIMIT[gpu.generation][several])
    if protocol == "LL":
        rate = min(TREE_LL * rate, ll_limit(nodes, gpu))
    elif protocol == "LL128":
        part = TREE_LL128_IN_NODE if nodes == 1 else TREE_LL128_BETWEEN
        rate = min(part * rate, channels * TREE_LL128_LIMIT[gpu.generation][several])
    if local == 1:
        rate = TREE_ONE_GPU * rate
    return rate


def tree_correction(protocol: str, nbytes: float) -> float:
    """Part of a tree's bandwidth reached at this size; ncclTopoGetAlgoTime, L639 to L642, 2.30."""
    parts = TREE_CORRECTION[protocol]
    power = floor_log2(nbytes // 64)
    return parts[power] if nbytes >= 64 and power < len(parts) else 1.0


def choice(
    collective: str,
    algorithm: str,
    protocol: str,
    nbytes: float,
    nodes: int,
    local: int,
    gpu: Gpu,
) -> dict[str, Any]:
    """Price of an algorithm with a protocol, seconds; ncclTopoGetAlgoTime, L630 to L653, 2.30."""
    ranks = nodes * local
    bandwidth = bus_bandwidth(algorithm, protocol, nodes, local, gpu)
    if algorithm == "tree":
        bandwidth = 0.5 * bandwidth * tree_correction(protocol, nbytes)
        latency = tree_latency(protocol, nodes, local)
    else:
        bandwidth = bandwidth * ranks / ring_steps(collective, ranks)
        latency = ring_latency(collective, protocol, nodes, local)
        share = nbytes // (2 * CHANNELS_BETWEEN * ranks)
        plateau = collective == "all_reduce" and protocol == "Simple" and nodes > 1
        if share >= PLATEAU_BYTES and plateau:
            latency = PLATEAU * latency
    return {
        "algorithm": algorithm,
        "protocol": protocol,
        "seconds": latency + nbytes / bandwidth,
        "latency": latency,
        "bandwidth": bandwidth,
    }


def choices(
    collective: str, nbytes: float, nodes: int, local: int, gpu: Gpu
) -> list[dict[str, Any]]:
    """Prices of every algorithm and protocol, in seconds and bytes per second; tuning.cc, 2.30.

    The tensor is the full one: of an all-gather what a rank ends with, of a reduce-scatter what it
    begins with. NVLS, NVLSTree, CollNet, and PAT (on only with one GPU per node) are left out.
    """
    if nodes * local == 1:  # as updateCollCostTable in enqueue.cc has it
        nothing = {"algorithm": "ring", "protocol": "Simple", "seconds": 0.0, "latency": 0.0}
        nothing["bandwidth"] = line_rate(nodes, local, gpu)
        return [nothing]
    return [
        choice(collective, algorithm, protocol, nbytes, nodes, local, gpu)
        for algorithm in ALGORITHMS[collective]
        for protocol in PROTOCOLS
    ]


def cheapest(collective: str, nbytes: float, nodes: int, local: int, gpu: Gpu) -> dict[str, Any]:
    """Choice that NCCL makes, the one of least seconds; topoGetAlgoInfo in enqueue.cc, 2.30."""
    found = choices(collective, nbytes, nodes, local, gpu)
    best = found[0]
    for each in found:
        if each["seconds"] < best["seconds"]:
            best = each
    return best


def seconds(collective: str, nbytes: float, nodes: int, local: int, gpu: Gpu) -> float:
    """Seconds of a collective by the choice that NCCL makes, 0 for one rank; tuning.cc, 2.30."""
    return float(cheapest(collective, nbytes, nodes, local, gpu)["seconds"])
