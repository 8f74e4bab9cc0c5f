"""Seconds that a GPU computes in a step: matrices, attention, the head, and what comes twice."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from minidist.formulas.inputs import Gpu, TrainingStep

# Fitted to our record of a layer on an H100: `benchmarks/results/gpu_grid.json`.
NARROWS = 2 / 3  # exponent of a tensor degree, by which its matrices run like narrower ones
PIECE = 1200  # tokens of a piece at which ring attention reaches half of attention's rate
SELECTIVE = 0.13  # of forward, what is not matrices and attention: see `gpu_experts.json`
FEW = 120  # tokens with which an expert's matrices run half as fast as a dense layer's


def rate(gpu: Gpu, width: float) -> float:
    """FLOPs per second of the matrices of such a width, while nothing waits for the network."""
    return gpu.flops * gpu.utilization * width / (width + gpu.half_width)


def narrow_rate(step: TrainingStep) -> float:
    """FLOPs per second of matrices of which each rank of a tensor group has a part.

    T ranks make one side of each narrower: they run like square ones that are T^NARROWS times
    narrower.
    """
    return rate(step.gpu, step.sizes.width * step.tensor ** (1 - NARROWS))


def again(step: TrainingStep) -> float:
    """The share of the blocks' forward that backward computes once more."""
    return step.checkpointing * (SELECTIVE if step.selective else 1)


def compute(step: TrainingStep) -> list[float]:
    """Seconds of forward, of backward, and of the update, which computes next to nothing."""
    blocks, head = passes(step)
    return [blocks + head, (2 + again(step)) * blocks + 2 * head, 0.0]


def passes(step: TrainingStep) -> list[float]:
    """Seconds of forward through the blocks, which may be computed again, and the head.

    In a pipeline, those of the slowest rank; the head counts there as if all ranks shared it.
    """
    sizes = step.sizes
    speed = narrow_rate(step) / sizes.uneven
    matrices = (sizes.operations - sizes.attention - sizes.head) * slowed(step) / step.faster
    blocks = step.batch * matrices / speed + attention_pass(step)
    return [blocks, step.batch * sizes.head / speed]


def slowed(step: TrainingStep) -> float:
    """How many times as long a mixture's matrices take because each expert has few tokens.

    Its experts do nearly all of a layer's operations, and each has its part of what is routed.
    """
    sizes = step.sizes
    if sizes.routed == 0:
        return 1.0
    own = sizes.block[len(sizes.block) - 1]
    experts = sizes.experts * step.tensor / sizes.units / own  # of a rank, in a layer
    numbers = step.batch / step.micro_batches * sizes.routed / sizes.units
    tokens = numbers / sizes.width / experts
    return 1 + FEW / tokens


def in_pieces(step: TrainingStep) -> float:
    """The part of attention's rate that is left when it is computed piece by piece."""
    piece = step.sizes.tokens
    whole = piece * step.context
    return piece / (piece + PIECE) * (whole + PIECE) / whole


def attention_pass(step: TrainingStep) -> float:
    """Seconds of forward in attention."""
    speed = step.gpu.attention * in_pieces(step) * narrow_rate(step)
    return step.batch * step.sizes.attention * step.sizes.uneven / speed


def compute_parts(step: TrainingStep) -> dict[str, float]:
    """Seconds of forward and backward in the blocks' matrices, in attention and in the head."""
    blocks, head = passes(step)
    attention = attention_pass(step)
    passed = 3 + again(step)
    return {
        "matrices": passed * (blocks - attention),
        "attention": passed * attention,
        "head": 3 * head,
    }


def mfu(step: TrainingStep, seconds: float) -> float:
    """Model FLOPs utilization of a step of so many `seconds`, as others publish it.

    It counts attention in full, though half of it is masked, and recomputation not at all:
    Chowdhery et al. (2022), "PaLM", appendix B.
    """
    needed = 3 * step.batch * (step.sizes.operations + step.sizes.attention)
    return needed / seconds / step.gpu.flops


def head_shares(step: TrainingStep) -> list[float]:
    """Shares of forward and of backward that the head takes."""
    computes, head = compute(step), passes(step)[1]
    return [head / computes[0], 2 * head / computes[1]]
