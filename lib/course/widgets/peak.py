"""The most memory that one GPU needs in a training step, activations included."""

import math
from typing import NamedTuple

from course.widgets.memory import POLICIES, bytes_each, count_text
from course.widgets.page import Control, Slider, nbytes_text, stops
from minidist.memory.state import DtypePolicy, state
from minidist.planner.hardware import ACCELERATORS

VOCABULARY = 32_000
ASPECT = 128  # width of a model in multiples of its blocks, as in GPT-3
KEPT = 16  # numbers that a block keeps of each token, in multiples of its width
CHECKPOINTS = ("none", "every block")
SIZES = [0, *map(int, stops(8, 13, (1, 1.3, 2, 3, 5, 7)))]


class Peak(NamedTuple):
    """Bytes of each part of a step; gradients and activations are there at different times."""

    weights: int
    gradients: int
    optimizer: int
    activations: float

    @property
    def total(self) -> float:
        """The most at a time: all activations and no gradients yet, or the other way round."""
        return self.weights + self.optimizer + max(self.gradients, self.activations)


def shape(parameters: int) -> tuple[int, float]:
    """Blocks and width of a GPT with so many parameters, which are 12 width² in a block."""
    if not parameters:
        return 0, 0.0
    blocks = max(1, round((parameters / 12) ** (1 / 3) / ASPECT ** (2 / 3)))
    return blocks, math.sqrt(parameters / 12 / blocks)


def peak(
    parameters: int, policy: DtypePolicy, optimizer: str, tokens: int, checkpoints: bool
) -> Peak:
    """Predict the peak of a step of a GPT on so many tokens.

    At the beginning of backward there are what all blocks have kept, the logarithms of the
    probabilities, and two gradients of the logits. With a checkpoint at every block, which keeps
    its input alone, a block is computed again when the logits are gone.
    """
    held = state(parameters, policy, optimizer)
    blocks, width = shape(parameters)
    block, logits = KEPT * width, 3 * VOCABULARY
    kept = blocks * width + max(block, logits) if checkpoints else blocks * block + logits
    activations = tokens * kept * policy.weights.itemsize
    return Peak(held.weights, held.gradients, held.optimizer, activations)


def peak_slider(parameters: float = 3e9, rows: int = 4, length: int = 2048) -> Slider:
    """Bars of state and activations at both ends of backward, against the memory of a GPU."""
    counts, lengths = ([1 << bit for bit in range(low, high)] for low, high in ((0, 11), (7, 21)))
    policies = list(POLICIES)
    memories = {24e9: "24 GB card"} | {
        gpu.memory: f"{gpu.name.split()[0]}, {nbytes_text(gpu.memory)}"
        for gpu in ACCELERATORS.values()
    }
    controls = [
        Control("parameters", "Parameters", SIZES, [*map(count_text, SIZES)], int(parameters)),
        Control("rows", "Rows at a time", counts, [f"{n:,}" for n in counts], rows),
        Control("length", "Tokens in a row", lengths, [f"{n:,}" for n in lengths], length),
        Control("policy", "Dtypes and optimizer", policies, policies, policies[0], choose=True),
        Control("checkpoints", "Checkpoints", CHECKPOINTS, CHECKPOINTS, "none", choose=True),
        Control("limit", "GPU", [*memories], [*memories.values()], 80e9, choose=True),
    ]
    return Slider(
        "peak",
        "What one GPU holds at both ends of backward",
        controls,
        {"each": bytes_each(), "shapes": {size: shape(size) for size in SIZES}},
    )
