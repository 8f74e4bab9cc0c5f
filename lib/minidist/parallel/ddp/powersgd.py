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
makes P and Q NaN on all ranks. The step is then skipped by whoever looks at its gradients; it
must not live on in errors and bases. So these are kept as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minidist.comm.comm import Comm
from minidist.parallel.ddp.bucket import GradBucket
from minidist.parallel.ddp.comm_hooks import Reduced, all_reduce, real_buffer, start
from minidist.profiler.timeline import mark

__all__ = ["PowerSGD", "power_sgd"]


def power_sgd(state: PowerSGD, bucket: GradBucket) -> Reduced:
    """Average the gradients as P and Q; the others of the bucket, whole, in the same message as P.

    The second message, Q, can only be sent when P has come: `wait()` does.

    Args:
        state: what is remembered between steps.
        bucket: of real floating-point gradients; its buffer is averaged in place.

    Raises:
        TypeError: the gradients are of another kind.
    """
    real_buffer(state.comm, bucket)
    whole = state.step < state.start
    state.step += bucket.is_last()
    if whole:
        return all_reduce(state.comm, bucket)
    with torch.no_grad():
        both = _Round(state, bucket)
        return start(state.comm, both.first, both.finish)


class _Round:
    """One bucket in one step: what is sent first, and what is made of it."""

    def __init__(self, state: PowerSGD, bucket: GradBucket) -> None:
        self.state, self.bucket = state, bucket
        self.rest: list[torch.Tensor] = []
        self.parts: list[_Part] = []
        for gradient, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
            if state.compresses(gradient):
                self.parts.append(_Part(gradient, state._recall(parameter, gradient)))
            else:
                self.rest.append(gradient)
        self.first = self.share([part.p for part in self.parts] + self.rest)

    def share(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """This rank's part of the tensors' means, in one message."""
        return torch.cat([each.reshape(-1) for each in tensors]).div_(self.state.comm.ranks)

    def finish(self) -> torch.Tensor:
        """P and the uncompressed have come: send Q, and put the result into the bucket."""
        sizes = [part.p.numel() for part in self.parts] + [each.numel() for each in self.rest]
        means = torch.split(self.first, sizes)
        for part, p in zip(self.parts, means, strict=False):
            part.project(p)
        for gradient, mean in zip(self.rest, means[len(self.parts) :], strict=True):
            gradient.copy_(mean.view_as(gradient))
        if self.parts:
            second = self.share([part.q for part in self.parts])
            with mark(f"Q of bucket {self.bucket.index()}", "communication", second.device):
                self.state.comm.all_reduce(second)
            qs = torch.split(second, [part.q.numel() for part in self.parts])
            for part, q in zip(self.parts, qs, strict=True):
                part.apply(q)
        return self.bucket.buffer()


class _Part:
    """One gradient that is compressed."""

    def __init__(self, gradient: torch.Tensor, memory: _Memory) -> None:
        self.gradient, self.memory = gradient, memory
        self.matrix = _matrix(gradient).to(memory.basis.dtype)
        if memory.error is not None:
            self.matrix = self.matrix + memory.error
        self.p = self.matrix @ memory.basis

    def project(self, mean: torch.Tensor) -> None:
        """P is there: [Note: orthonormal by QR]."""
        self.p = torch.linalg.qr(mean.view_as(self.p)).Q
        self.q = self.matrix.T @ self.p

    def apply(self, mean: torch.Tensor) -> None:
        """Q is there: the gradient is P Qᵀ; the rest waits, see [Note: error feedback]."""
        q = mean.view_as(self.q)
        self.gradient.copy_((self.p @ q.T).view_as(self.gradient))
        sound = q.isfinite().all()  # on all ranks or none: [Note: a bad step leaves no trace]
        if self.memory.error is not None:
            error = self.matrix - self.p @ self.q.T
            self.memory.error = torch.where(sound, error, self.memory.error)
        self.memory.basis = torch.where(sound, q, self.memory.basis)


@dataclass
class _Memory:
    """What is kept of one parameter from step to step."""

    basis: torch.Tensor  # Q of the last step: [m, r], alike on all ranks
    error: torch.Tensor | None  # what this rank has not yet sent: [n, m]


class PowerSGD:
    """What `power_sgd` remembers, the state of `register_comm_hook`; one for a model.

    It is kept by parameter, not by bucket: buckets may be rebuilt at any time.

    Args:
        comm: between which ranks, and how.
        rank: r, the number of columns of P and Q.
        start: number of steps in which gradients are averaged whole: at first they change fastest.
        min_compression_rate: a matrix is compressed if that saves more than this factor; vectors
            never are.
        error_feedback: see [Note: error feedback]; without it what is left out is lost.
        warm_start: whether Q is the last step's; if not, it is drawn anew for each step.
        seed: of the first Q; alike on all ranks.

    Attributes:
        step: backward passes so far.

    Raises:
        ValueError: rank, start or min_compression_rate is out of range.
    """

    def __init__(
        self,
        comm: Comm,
        rank: int = 1,
        start: int = 10,
        *,
        min_compression_rate: float = 2.0,
        error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
    ) -> None:
        where = f"rank {comm.rank}: PowerSGD"
        for name, number, least in (("rank", rank, 1), ("start", start, 0)):
            if not isinstance(number, int) or number < least:
                expected = f"expected a whole number of at least {least}"
                raise ValueError(f"{where}: {name}: {expected}, got {number!r}")
        if not min_compression_rate >= 0:
            expected = "min_compression_rate: expected at least 0"
            raise ValueError(f"{where}: {expected}, got {min_compression_rate!r}")
        self.comm, self.rank, self.start = comm, rank, start
        self.min_compression_rate = min_compression_rate
        self.error_feedback, self.warm_start = error_feedback, warm_start
        self.step = 0
        self._random = torch.Generator().manual_seed(seed)
        self._memory: dict[torch.Tensor, _Memory] = {}

    def compresses(self, gradient: torch.Tensor) -> bool:
        """Whether a gradient of this shape is sent as P and Q."""
        if gradient.dim() < 2 or not gradient.numel():
            return False
        rows, columns = _matrix(gradient).shape
        sent = (rows + columns) * self.columns(gradient)
        return sent * self.min_compression_rate < gradient.numel()

    def columns(self, gradient: torch.Tensor) -> int:
        """The r that is used for a gradient of this shape: no more than it has."""
        rows, columns = _matrix(gradient).shape
        return min(self.rank, rows, columns)

    def error(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What this rank still owes of the parameter's gradients, in its shape; None if nothing."""
        memory = self._memory.get(parameter)
        if memory is None or memory.error is None:
            return None
        return memory.error.view(parameter.shape)

    def _recall(self, parameter: torch.Tensor, gradient: torch.Tensor) -> _Memory:
        """What is kept of the parameter: before its first step a drawn Q, and an error of zeros.

        Both are float32 at least, since QR knows nothing smaller.
        """
        matrix, memory = _matrix(gradient), self._memory.get(parameter)
        wide = torch.promote_types(gradient.dtype, torch.float32)
        if memory is None or not self.warm_start:
            basis = self.draw(matrix.shape[1], self.columns(gradient)).to(gradient.device, wide)
            error = memory.error if memory else None
            if memory is None and self.error_feedback:
                error = torch.zeros_like(matrix, dtype=wide)
            memory = self._memory[parameter] = _Memory(basis, error)
        return memory

    def draw(self, rows: int, columns: int) -> torch.Tensor:
        """A random Q; ranks draw in the same order, and so alike."""
        return torch.randn(rows, columns, generator=self._random, dtype=torch.float64)


def _matrix(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as a matrix: output features down, all others to the right."""
    return gradient.reshape(gradient.shape[0], -1)
