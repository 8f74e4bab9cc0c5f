"""The worked problem of experts: a layer of DeepSeek-V3 on 64 of our H100s."""

from course.pages.price import ask
from minidist.planner.hardware import H100

TOKENS, WIDTH, HIDDEN, CHOSEN, GPUS = 4096, 7168, 2048, 8, 64  # TOKENS per GPU


def layer_ms() -> tuple[float, float]:
    """Milliseconds of a layer's four all-to-alls, and of its experts at the GPU's peak."""
    travel = 4 * ask("all_to_all", gpus=GPUS, nbytes=2 * CHOSEN * TOKENS * WIDTH)
    weights = 3 * WIDTH * HIDDEN
    return 1e3 * travel, 1e3 * 6 * weights * CHOSEN * TOKENS / H100.flops


def crossing(copies: float = 7, there: int = 2, back: int = 2) -> float:
    """Bytes that cross the network for a token and unit of width, in a dispatch and a combine."""
    return copies * (there + back)
