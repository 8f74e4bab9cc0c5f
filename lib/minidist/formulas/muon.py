"""Muon on shards: operations, bytes sent and bytes held, and which rank owns which matrix."""

from __future__ import annotations

from minidist.formulas.models import newton_schulz as newton_schulz
from minidist.formulas.models import products

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Sequence

    Shapes = Sequence[Sequence[int]]  # rows and columns


def owners(shapes: Shapes, ranks: int) -> list[int]:
    """The rank that orthogonalizes each matrix: the most work first, to whom has least so far."""
    work = [newton_schulz(rows, columns) for rows, columns in shapes]
    load, found = [0] * ranks, [0] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda index: -work[index]):
        found[index] = load.index(min(load))
        load[found[index]] += work[index]
    return found


def most_owned(shapes: Shapes, each: Sequence[int], ranks: int) -> int:
    """The most that an owner has of what there is of `each` matrix, such as operations."""
    load = [0] * ranks
    for owner, count in zip(owners(shapes, ranks), each, strict=True):
        load[owner] += count
    return max(load)


def sent(shapes: Shapes, ranks: int) -> float:
    """Bytes that a rank sends in a step: to the owners, and as one, in bf16."""
    return 4 * sum(rows * columns for rows, columns in shapes) * (ranks - 1) / ranks**2


def held(shapes: Shapes, ranks: int) -> float:
    """Bytes that the fullest owner holds while it updates, besides momentum.

    Its shards of all matrices in bf16, its own matrices twice, and four products of the largest.
    """
    sizes = [rows * columns for rows, columns in shapes]
    largest = max(products(rows, columns) for rows, columns in shapes)
    return 2 * sum(sizes) / ranks + 4 * most_owned(shapes, sizes, ranks) + 4 * largest


def by_dtensors(shapes: Shapes, ranks: int) -> tuple[float, float]:
    """Operations and bytes sent of a rank if `torch.optim.Muon` steps on FSDP2's DTensors.

    In each of 5 steps a wide or square matrix is gathered twice, and its square once; that of a
    tall one is summed twice, and squared on every rank. In torch 2.13; by rings, in bf16.
    """
    operations, elements = 0.0, 0
    for rows, columns in shapes:
        operations += newton_schulz(rows, columns) / ranks
        if rows > columns:
            operations += 5 * 2 * columns**3 * (ranks - 1) / ranks
            elements += 5 * 4 * columns * columns
        else:
            elements += 5 * (2 * rows * columns + rows * rows)
    return operations, 2 * elements * (ranks - 1) / ranks
