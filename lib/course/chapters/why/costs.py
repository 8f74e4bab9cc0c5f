"""Costs that the first chapter draws: operations, also per byte, a state's bytes, a crossing."""

from bisect import bisect_left
from collections.abc import Callable

from minidist.memory.state import AUTOCAST, state
from minidist.planner.jobs import SHAPES, matrices, sized


def state_parts(job: str) -> dict[str, int]:
    """Bytes of a job's state on one GPU, by part."""
    own = state(sized(job).parameters, AUTOCAST)
    parts = {"parameters": own.weights, "gradients": own.gradients}
    return parts | {"optimizer state": own.optimizer}


def layer_costs(job: str, sequence: int) -> dict[str, float]:
    """MFLOPs of a token's forward through a layer of a job, by what does them."""
    query, key, value, output, gate, up, down = (2e-6 * a * b for a, b in matrices(job)[:7])
    sizes = sized(job, sequence)
    return {
        "query, output": query + output,
        "key, value": key + value,
        "gate, up, down": gate + up + down,
        "attention": 1e-6 * sizes.attention / sizes.tokens / sizes.units,
    }


def operations_per_byte(job: str, tokens: int) -> dict[str, float]:
    """Operations per byte moved, of parts of a job's step: in bf16, AdamW's in fp32.

    A product reads two tensors and writes one. Fused attention reads queries, keys and values, and
    writes as much as it reads of queries; AdamW takes some 14 operations per parameter, and moves
    28 bytes. A norm, with four operations for eight bytes, has as few.
    """
    _, width, hidden, heads, kv_heads, *_ = SHAPES[job]
    return {
        "matrices": 1 / (1 / width + 1 / hidden + 1 / tokens),
        "attention": tokens / (2 + 2 * kv_heads / heads),
        "AdamW, norms": 14 / 28,
    }


def crossing(compute: Callable[[int], float], communication: Callable[[int], float]) -> int:
    """Smallest number of GPUs, in full nodes, for which communication takes longer."""
    gpus = range(8, 65_536, 8)
    return gpus[bisect_left(gpus, True, key=lambda n: communication(n) > compute(n))]
