"""PowerSGD: send a low-rank approximation of each gradient, and keep what it leaves out for later.

Vogels, Karimireddy and Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization* (2019), algorithms 1 and 2. An n x m matrix M is approximated by P Qᵀ, of rank r.

[Note: error feedback] What a step leaves out, M - P Qᵀ with a rank's own Q, it adds to its next
gradient. With the mean's Q (torch's way) what is kept also sums up, without end, how far the rank's
gradients are from the mean.
"""

from __future__ import annotations

import torch

from minidist.comm.comm import Comm
from minidist.parallel.ddp.bucket import GradBucket
from minidist.parallel.ddp.comm_hooks import Reduced, all_reduce, start

Kept = dict[str, torch.Tensor]  # the last step's "q", [m, r]; the "error" of this rank, [n, m]


def power_sgd(state: PowerSGD, bucket: GradBucket) -> Reduced:
    """Average the gradients as P and Q; those not worth it, in full, in the same message as P."""
    compress = state.step >= state.start
    state.step += bucket.is_last()
    matrices, others = [], []
    for gradient, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
        if compress and state.compresses(gradient):
            matrices.append(LowRank(gradient, state.recall(parameter, gradient)))
        else:
            others.append(gradient)
    if not matrices:
        return all_reduce(state.comm, bucket)
    first, parts = scaled([each.p for each in matrices] + others, state.comm)

    def finish() -> torch.Tensor:  # in `wait()`: Q can only be sent when P has come
        for gradient, mean in zip(others, parts[len(matrices) :], strict=True):
            gradient.copy_(mean)
        pairs = zip(matrices, parts, strict=False)
        second, means = scaled([matrix.project(mean) for matrix, mean in pairs], state.comm)
        state.comm.all_reduce(second)
        for matrix, mean in zip(matrices, means, strict=True):
            matrix.apply(mean)
        return bucket.buffer()

    return start(state.comm, first, finish)


def scaled(tensors: list[torch.Tensor], comm: Comm) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A message of their N-th parts, one after another, and a view of each part in its shape."""
    message = torch.cat([each.flatten() for each in tensors]).div_(comm.ranks)
    parts = torch.split(message, [each.numel() for each in tensors])
    return message, [part.view_as(each) for part, each in zip(parts, tensors, strict=True)]


class LowRank:
    """One gradient in one step: a matrix M that is sent as P and Q."""

    def __init__(self, gradient: torch.Tensor, kept: Kept) -> None:
        self.gradient, self.kept = gradient, kept
        self.matrix = gradient.flatten(1) + kept["error"]
        self.p = self.matrix @ kept["q"]

    def project(self, mean: torch.Tensor) -> torch.Tensor:
        """P is averaged: make its columns orthonormal, and return Q."""
        self.p = torch.linalg.qr(mean).Q  # sound for gradients of a lower rank too
        self.q = self.matrix.T @ self.p
        return self.q

    def apply(self, mean: torch.Tensor) -> None:
        """Q is averaged: the gradient is P Qᵀ, and the rest waits. [Note: error feedback]."""
        self.gradient.copy_((self.p @ mean.T).view_as(self.gradient))
        # A loss scaler makes infinities on purpose, and skips the step: it must leave no trace.
        sound = mean.isfinite().all()  # on all ranks or none
        error = self.matrix - self.p @ self.q.T
        self.kept["error"] = torch.where(sound, error, self.kept["error"])
        self.kept["q"] = torch.where(sound, mean, self.kept["q"])


class PowerSGD:
    """The state of `power_sgd`, for one model; the first `start` steps are averaged in full."""

    def __init__(self, comm: Comm, rank: int = 1, start: int = 10) -> None:
        self.comm, self.rank, self.start, self.step = comm, rank, start, 0
        self.kept: dict[torch.Tensor, Kept] = {}  # by parameter: buckets may be built anew
        self.random = torch.Generator().manual_seed(0)  # alike on all ranks

    def compresses(self, gradient: torch.Tensor) -> bool:
        """True if P and Q have less than half its elements; vectors and complex go in full."""
        if gradient.dim() < 2 or gradient.is_complex():
            return False
        return 2 * sum(gradient.flatten(1).shape) * self.rank < gradient.numel()

    def recall(self, parameter: torch.Tensor, gradient: torch.Tensor) -> Kept:
        """What is kept of the parameter: before its first step a random Q, and no error."""
        if parameter not in self.kept:
            wide = torch.promote_types(gradient.dtype, torch.float32)  # for QR
            error = torch.zeros_like(gradient.flatten(1), dtype=wide)
            q = torch.randn(error.shape[1], self.rank, generator=self.random, dtype=wide)
            self.kept[parameter] = {"error": error, "q": q.to(error.device)}
        return self.kept[parameter]
