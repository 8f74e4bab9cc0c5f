"""Costs that the first chapter draws: a layer's operations, a state's bytes, and a crossing."""

from bisect import bisect_left
from collections.abc import Callable

from minidist.memory.state import AUTOCAST, state
from minidist.planner.jobs import matrices, sized


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


def crossing(compute: Callable[[int], float], communication: Callable[[int], float]) -> int:
    """Smallest number of GPUs, in full nodes, for which communication takes longer."""
    gpus = range(8, 65_536, 8)
    return gpus[bisect_left(gpus, True, key=lambda n: communication(n) > compute(n))]
