"""PowerSGD: send a low-rank approximation of each gradient, and keep what it leaves out for later.

Vogels, Karimireddy and Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization* (2019), algorithms 1 and 2. A gradient matrix M of n x m elements is approximated by
P Qᵀ, of rank r: (n + m) r elements to send. One power iteration makes Q of the last step's::

    P = mean of M Q over the ranks, its columns made orthonormal
    Q = mean of Mᵀ P

so that P Qᵀ is the mean gradient projected on the columns of P. Both messages are plain sums, so
any all-reduce does; and Q, kept from step to step, follows the leading singular vectors.

[Note: error feedback] What a step leaves out, M - P (Mᵀ P)ᵀ, each rank adds to its next gradient.
So nothing is lost, only late: what was applied, and the mean of the ranks' errors, add up to the
sum of all mean gradients. The error is that of this rank's own matrix, as in the paper's algorithm
2. Taken from the mean, as M - P Qᵀ (torch's way), it has the same mean over the ranks and leads to
the same steps. But then it also adds up how far the rank's gradients were from the mean, of which
nothing is ever taken away again: it grows without end, and eats up the digits. Of the rank's own
error every P takes away what lies along its columns.

[Note: orthonormal by QR] Gram and Schmidt divide by the length of what is left of a column: by
zero, for a gradient of zeros or of a lower rank. Householder's QR does not: it puts any orthonormal
column there. That also is why a Q of zeros (nothing came in the last step) finds its way back.

[Note: a bad step leaves no trace] An infinite gradient, as a loss scaler provokes them on purpose,
makes P and Q NaN on all ranks. The scaler then skips the step; it must not live on in errors and
bases. So these are kept as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minidist.comm.comm import Comm
from minidist.parallel.ddp.bucket import GradBucket
from minidist.parallel.ddp.comm_hooks import Reduced, all_reduce, real_buffer, start
from minidist.profiler.timeline import mark

__all__ = ["LowRank", "Memory", "PowerSGD", "power_sgd"]

LEAST_SAVING = 2  # a matrix is compressed if P and Q are smaller by more than this factor


def power_sgd(state: PowerSGD, bucket: GradBucket) -> Reduced:
    """Average the gradients as P and Q; those not worth it, in full, in the same message as P.

    The second message, Q, can only be sent when P has come: `wait()` does.
    """
    comm = state.comm
    real_buffer(comm, bucket)
    in_full = state.step < state.start
    state.step += bucket.is_last()
    if in_full:
        return all_reduce(comm, bucket)
    matrices, others = [], []
    for gradient, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
        if state.compresses(gradient):
            matrices.append(LowRank(gradient, state.recall(parameter, gradient)))
        else:
            others.append(gradient)
    first = _flat([each.p for each in matrices] + others).div_(comm.ranks)

    def finish() -> torch.Tensor:
        sizes = [each.p.numel() for each in matrices] + [each.numel() for each in others]
        means = torch.split(first, sizes)
        for matrix, mean in zip(matrices, means, strict=False):
            matrix.project(mean)
        for gradient, mean in zip(others, means[len(matrices) :], strict=True):
            gradient.copy_(mean.view_as(gradient))
        if matrices:
            second = _flat([each.q for each in matrices]).div_(comm.ranks)
            with mark(f"Q of bucket {bucket.index()}", "communication", second.device):
                comm.all_reduce(second)
            means = torch.split(second, [each.q.numel() for each in matrices])
            for matrix, mean in zip(matrices, means, strict=True):
                matrix.apply(mean)
        return bucket.buffer()

    return start(comm, first, finish)


class LowRank:
    """One gradient in one step: a matrix M that is sent as P and Q."""

    def __init__(self, gradient: torch.Tensor, memory: Memory) -> None:
        self.gradient, self.memory = gradient, memory
        self.matrix = _matrix(gradient) + memory.error
        self.p = self.matrix @ memory.basis

    def project(self, mean: torch.Tensor) -> None:
        """P is averaged: make its columns orthonormal. [Note: orthonormal by QR]."""
        self.p = torch.linalg.qr(mean.view_as(self.p)).Q
        self.q = self.matrix.T @ self.p

    def apply(self, mean: torch.Tensor) -> None:
        """Q is averaged: the gradient is P Qᵀ, and the rest waits. [Note: error feedback]."""
        q = mean.view_as(self.q)
        self.gradient.copy_((self.p @ q.T).view_as(self.gradient))
        sound = q.isfinite().all()  # on all ranks or none: [Note: a bad step leaves no trace]
        error = self.matrix - self.p @ self.q.T
        self.memory.error = torch.where(sound, error, self.memory.error)
        self.memory.basis = torch.where(sound, q, self.memory.basis)


@dataclass
class Memory:
    """What is kept of one parameter from step to step; float32 at least, for QR."""

    basis: torch.Tensor  # Q of the last step: [m, r], alike on all ranks
    error: torch.Tensor  # what this rank has not yet sent: [n, m]


class PowerSGD:
    """What `power_sgd` remembers, the state of `register_comm_hook`; one for a model.

    It is kept by parameter, not by bucket: buckets may be rebuilt at any time.

    Args:
        comm: between which ranks, and how.
        rank: r, the number of columns of P and Q.
        start: steps in which gradients are averaged in full: at first they change fastest.
    """

    def __init__(self, comm: Comm, rank: int = 1, start: int = 10) -> None:
        for name, number, least in (("rank", rank, 1), ("start", start, 0)):
            if not isinstance(number, int) or number < least:
                raise ValueError(
                    f"rank {comm.rank}: PowerSGD: {name}: expected a whole number of at least "
                    f"{least}, got {number!r}"
                )
        self.comm, self.rank, self.start = comm, rank, start
        self.step = 0  # backward passes so far
        self.memory: dict[torch.Tensor, Memory] = {}
        self._random = torch.Generator().manual_seed(0)

    def compresses(self, gradient: torch.Tensor) -> bool:
        """True if a gradient of this shape is sent as P and Q; vectors never are."""
        if gradient.dim() < 2 or not gradient.numel():
            return False
        rows, columns = _matrix(gradient).shape
        sent = (rows + columns) * min(self.rank, rows, columns)
        return sent * LEAST_SAVING < gradient.numel()

    def recall(self, parameter: torch.Tensor, gradient: torch.Tensor) -> Memory:
        """What is kept of the parameter: before its first step a random Q, and no error.

        Ranks draw in the same order, and so alike.
        """
        if parameter not in self.memory:
            rows, columns = _matrix(gradient).shape
            size = columns, min(self.rank, rows, columns)
            basis = torch.randn(size, generator=self._random, dtype=torch.float64)
            wide = torch.promote_types(gradient.dtype, torch.float32)
            error = torch.zeros(rows, columns, dtype=wide, device=gradient.device)
            self.memory[parameter] = Memory(basis.to(gradient.device, wide), error)
        return self.memory[parameter]


def _matrix(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as a matrix: output features down, all others to the right."""
    return gradient.reshape(gradient.shape[0], -1)


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])
