"""The most memory that one GPU needs in a training step, activations included."""

import math
from typing import NamedTuple

from course.widgets.memory import AUTOCAST_ADAM, POLICIES, bytes_each, count_text, update_bytes
from course.widgets.page import Control, Slider, choice, control, stops
from minidist.memory.state import DtypePolicy, state
from minidist.planner.hardware import ACCELERATORS, GIB, H100
from minidist.planner.planner import ROOM

VOCABULARY = 128_256
ASPECT = 128  # width of a model in multiples of its blocks, as in GPT-3
KEPT = 16  # numbers that a block keeps of each token, in multiples of its width
SIZES = [0, *map(int, stops(8, 13, (1, 2, 3.2, 5, 8)))]


class Peak(NamedTuple):
    """Bytes of each part of a step; those of forward and of the update are never there together."""

    weights: int
    gradients: int
    optimizer: int
    activations: float
    cast: int  #: copies of the weights, until backward has used them
    update: int  #: what the optimizer needs while it updates

    @property
    def total(self) -> float:
        """The most at a time: all activations and no gradients yet, or the other way round."""
        ends = self.gradients + self.update
        return self.weights + self.optimizer + max(ends, self.cast + self.activations)


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

    At the beginning of backward there are what all blocks have kept, under autocast what norms read
    in fp32, and of each logit itself and in fp32 its log-probability and the gradient of that. With
    a checkpoint at every block, which keeps its input alone, a block is computed again when the
    logits are gone.
    """
    held, used = state(parameters, policy, optimizer), policy.computes.itemsize
    wider = max(0, policy.weights.itemsize - used)
    blocks, width = shape(parameters)
    block, logits = KEPT * width * used + 2 * width * wider, VOCABULARY * (used + 8)
    inputs = blocks * width * (used + wider)
    kept = inputs + max(block, logits) if checkpoints else blocks * block + logits
    cast, update = parameters * used if wider else 0, parameters * update_bytes(policy, optimizer)
    return Peak(held.weights, held.gradients, held.optimizer, tokens * kept, cast, update)


def peak_slider() -> Slider:
    """Bars of state and activations at both ends of backward, against the memory of a GPU."""
    counts, lengths = ([1 << bit for bit in range(low, high)] for low, high in ((0, 11), (7, 21)))
    memories = {24 * GIB: "24 GB"} | {
        gpu.memory: f"{gpu.name.split()[0]}, {gpu.memory / GIB:.0f} GB"
        for gpu in ACCELERATORS.values()
    }
    controls = [
        control("parameters", "Parameters", SIZES, int(3.2e9), count_text),
        control("sequences", "Sequences", counts, 1),
        control("length", "Tokens of a sequence", lengths, 4096),
        choice("policy", "Dtypes and optimizer", POLICIES, AUTOCAST_ADAM),
        choice("checkpoints", "Checkpoints", ("none", "every block"), "none"),
        Control("limit", "GPU", [*memories], [*memories.values()], H100.memory, choose=True),
    ]
    title = "What one GPU holds when backward begins, and in the update"
    shapes = {size: shape(size) for size in SIZES}
    return Slider("peak", title, controls, {"room": ROOM, "each": bytes_each(), "shapes": shapes})
