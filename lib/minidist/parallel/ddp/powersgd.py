"""PowerSGD: send a low-rank approximation of each gradient, and keep what it leaves out for later.

Vogels, Karimireddy and Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization* (2019), algorithms 1 and 2. An n x m matrix M is approximated by P Qᵀ, of rank r.

[Note: error feedback] What a step leaves out, M - P Qᵀ with a rank's own Q, it adds to its next
gradient. With the mean's Q (torch's way) what is kept also sums up, without end, how far the rank's
gradients are from the mean.
"""

import torch

from minidist.comm.comm import Comm
from minidist.parallel.ddp.bucket import Bucket
from minidist.parallel.ddp.comm_hooks import Reduced, all_reduce

Kept = dict[str, torch.Tensor]  # the last step's "q", [m, r]; the "error" of this rank, [n, m]


class PowerSGD:
    """The state of `power_sgd`, for one model; the first `start` steps are averaged in full."""

    def __init__(self, comm: Comm, rank: int = 1, start: int = 10) -> None:
        self.comm, self.rank, self.start, self.step = comm, rank, start, 0
        self.kept: dict[torch.Tensor, Kept] = {}  # by parameter: buckets may be built anew
        self.random = torch.Generator().manual_seed(0)  # alike on all ranks

    def recall(self, parameter: torch.Tensor, gradient: torch.Tensor) -> Kept | None:
        if gradient.dim() < 2 or gradient.is_complex():
            return None
        n, m = gradient.flatten(1).shape
        if 2 * (n + m) * self.rank >= gradient.numel():
            return None
        if parameter not in self.kept:
            wide = torch.promote_types(gradient.dtype, torch.float32)  # for QR
            error = torch.zeros(n, m, dtype=wide, device=gradient.device)
            q = torch.randn(m, self.rank, generator=self.random, dtype=wide, device="cpu")
            self.kept[parameter] = {"error": error, "q": q.to(gradient.device)}
        return self.kept[parameter]


def power_sgd(state: PowerSGD, bucket: Bucket) -> Reduced:
    """Average the gradients as P and Q; those not worth it, in full, in the same message as P."""
    comm, compress = state.comm, state.step >= state.start
    state.step += bucket.is_last()
    low, full = [], []
    for gradient, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
        if compress and (kept := state.recall(parameter, gradient)):
            low.append((gradient, gradient.flatten(1) + kept["error"], kept))
        else:
            full.append(gradient)
    if not low:
        return all_reduce(comm, bucket)
    first, means = scaled([matrix @ kept["q"] for _, matrix, kept in low] + full, comm)

    def finish() -> torch.Tensor:  # in `wait()`: Q can only be sent when P has come
        for gradient, mean in zip(full, means[len(low) :], strict=True):
            gradient.copy_(mean)
        # Orthonormal columns; QR is sound for gradients of a lower rank too.
        ps = [torch.linalg.qr(mean).Q for mean in means[: len(low)]]
        qs = [matrix.T @ p for (_, matrix, _), p in zip(low, ps, strict=True)]
        second, mean_qs = scaled(qs, comm)
        comm.all_reduce(second)
        for (gradient, matrix, kept), p, q, mean in zip(low, ps, qs, mean_qs, strict=True):
            gradient.copy_((p @ mean.T).view_as(gradient))
            # A loss scaler makes infinities on purpose, and skips the step: it must leave no trace.
            sound = mean.isfinite().all()  # on all ranks or none
            error = matrix - p @ q.T  # [Note: error feedback]
            kept["error"] = torch.where(sound, error, kept["error"])
            kept["q"] = torch.where(sound, mean, kept["q"])
        return bucket.buffer()

    return Reduced(comm, first, finish)


def scaled(tensors: list[torch.Tensor], comm: Comm) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A message of their N-th parts, one after another, and a view of each part in its shape."""
    message = torch.cat([each.flatten() for each in tensors]).div_(comm.ranks)
    parts = torch.split(message, [each.numel() for each in tensors])
    return message, [part.view_as(each) for part, each in zip(parts, tensors, strict=True)]
