"""Muon's update: the matrices of the blocks are orthogonalized, each by one rank that owns it.

As `minidist.Muon` does it, see [Note: owners] there: ranks that share a matrix send their parts to
its owner, as dealt out by work, and get their parts of what it made; ranks that have it whole all
do the same. Tensor groups share matrices, too. Embedding, head and vectors are AdamW's.
"""

from __future__ import annotations

from minidist.formulas.compute import rate
from minidist.formulas.memory import muons, sharing

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from minidist.formulas.inputs import TrainingStep


def orthogonalizing(step: TrainingStep, strategy: str) -> float:
    """Seconds of the busiest owner's products, at the rate of a whole layer's matrices."""
    if step.muon is not True:
        return 0.0
    speed = rate(step.gpu, step.sizes.width * step.tensor)
    return muons(step, strategy)["operations"] / speed


def sent_to_owners(step: TrainingStep, strategy: str) -> float:
    """Bytes that a rank sends in a step: its parts to the owners, and theirs back, in bf16."""
    if step.muon is not True:
        return 0.0
    owners = step.tensor * sharing(step, strategy)
    return 2 * 2 * muons(step, strategy)["parts"] * (owners - 1) / owners


def to_owners(step: TrainingStep, strategy: str) -> float:
    """Seconds of one of the two all-to-alls, without latencies, over the busier kind of links."""
    over = sharing(step, strategy)
    owners, near = step.tensor * over, step.tensor * min(over, step.local)
    if step.muon is not True or owners == 1:
        return 0.0
    size = 2 * muons(step, strategy)["parts"] / owners
    return size * max((owners - near) / step.gpu.network, (near - 1) / step.gpu.nvlink)
