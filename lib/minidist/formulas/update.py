"""Muon's update: the matrices of the blocks are orthogonalized, each by one rank that owns it.

As `minidist.Muon` does it, see [Note: owners] there: ranks that share a matrix send their parts to
its owner, as dealt out by work, and get their parts of what it made; ranks that have it whole all
do the same. Tensor groups share matrices, too. Embedding, head and vectors are AdamW's.
"""

from __future__ import annotations

from minidist.formulas.compute import rate

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from minidist.formulas.inputs import TrainingStep


def newton_schulz(rows: int, columns: int, steps: int = 5) -> int:
    """Operations that orthogonalize a matrix: per step three products.

    x times its transpose, the square of that, and that times x; the short side is squared.
    """
    short, long = min(rows, columns), max(rows, columns)
    return steps * (4 * short * short * long + 2 * short * short * short)


def products(rows: int, columns: int) -> int:
    """Numbers of a matrix and of its square, which an owner holds twice while it orthogonalizes."""
    short = min(rows, columns)
    return rows * columns + short * short


def owned(step: TrainingStep, over: int) -> dict[str, float]:
    """What the busiest owner has of a step's matrices, if so many replicas share them.

    `operations` and `elements`; `parts`: elements of which it has the part of each; `largest`: the
    most `products`. The most work goes first to whom has least, so an owner has its share of all,
    but at least one matrix.
    """
    kinds = step.sizes.matrices
    found = {"operations": 0.0, "elements": 0.0, "parts": 0.0, "largest": 0.0}
    least = {"operations": 0.0, "elements": 0.0}
    for place in range(len(kinds)):
        rows, columns, count = kinds[place]
        owners = step.tensor * over
        if (step.expert > 1) and (place == len(kinds) - 1):  # experts, which fewer ranks share
            owners = step.tensor * max(1, over // step.expert)
        number = count * step.sizes.units / owners
        found["operations"] += number * newton_schulz(rows, columns)
        found["elements"] += number * rows * columns
        least["operations"] = max(least["operations"], newton_schulz(rows, columns))
        least["elements"] = max(least["elements"], rows * columns)
        found["largest"] = max(found["largest"], products(rows, columns))
    found["parts"] = found["elements"]
    for name in ("operations", "elements"):
        found[name] = max(found[name], least[name])
    return found


def orthogonalizing(step: TrainingStep, over: int) -> float:
    """Seconds of the busiest owner's products, at the rate of a whole layer's matrices."""
    if step.muon is not True:
        return 0.0
    return owned(step, over)["operations"] / rate(step.gpu, step.sizes.width * step.tensor)


def sent_to_owners(step: TrainingStep, over: int) -> float:
    """Bytes that a rank sends in a step: its parts to the owners, and theirs back, in bf16."""
    if step.muon is not True:
        return 0.0
    owners = step.tensor * over
    return 2 * 2 * owned(step, over)["parts"] * (owners - 1) / owners


def to_owners(step: TrainingStep, over: int) -> float:
    """Seconds of one of the two all-to-alls, without latencies, over the busier kind of links."""
    owners, near = step.tensor * over, step.tensor * min(over, step.local)
    if step.muon is not True or owners == 1:
        return 0.0
    size = 2 * owned(step, over)["parts"] / owners
    return size * max((owners - near) / step.gpu.network, (near - 1) / step.gpu.nvlink)


def held_by_owner(step: TrainingStep, over: int) -> float:
    """Bytes that the fullest owner holds while it updates, besides momentum.

    Its parts of all matrices in bf16, its own matrices twice, and four products of the largest.
    """
    if step.muon is not True:
        return 0.0
    found = owned(step, over)
    if step.tensor * over == 1:  # one after the other
        return 4 * found["largest"]
    return 2 * found["parts"] + 4 * found["elements"] + 4 * found["largest"]
