"""Data-parallel training in four versions, each growing out of the one before.

Every rank has a copy of the model and computes gradients from its own part of the batch. Their
mean over the ranks is the gradient of the whole batch. `synchronize()` computes it, so all ranks
take the same step::

    model = OverlappedDDP(net, comm)
    optimizer = torch.optim.AdamW(net.parameters())
    loss_of(model(x), y).backward()
    model.synchronize()
    optimizer.step()
    optimizer.zero_grad()

Li et al., *PyTorch Distributed* (VLDB 2020), section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from from_scratch import Comm


class PerParameterDDP:
    """Version 1: one all-reduce for each parameter, after backward."""

    def __init__(self, module: nn.Module, comm: Comm) -> None:
        self.module, self.comm = module, comm
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        for tensor in [*module.parameters(), *module.buffers()]:
            comm.broadcast(tensor.detach())  # all replicas start as rank 0's

    def __call__(self, *args: Any) -> Any:
        """The module's output."""
        return self.module(*args)

    def synchronize(self) -> None:
        """Turn every gradient into the mean over all ranks."""
        for gradient in [gradient_of(parameter) for parameter in self.parameters]:
            gradient /= self.comm.ranks
            self.comm.all_reduce(gradient)


class FlatDDP(PerParameterDDP):
    """Version 2: one all-reduce for all gradients together, so that its latency is paid once."""

    def synchronize(self) -> None:
        """Turn every gradient into the mean over all ranks."""
        flat = flatten_gradients(self.parameters).div_(self.comm.ranks)
        self.comm.all_reduce(flat)
        set_gradients(self.parameters, flat)


class BucketedDDP(PerParameterDDP):
    """Version 3: a few all-reduces, each on its way while the next one is prepared."""

    def __init__(self, module: nn.Module, comm: Comm, bucket_cap_mb: float = 25) -> None:
        super().__init__(module, comm)
        self.buckets = in_buckets(self.parameters, bucket_cap_mb)
        self.in_flight: list[tuple[Tensor, Any]] = []

    def launch_next(self) -> None:
        """Start to all-reduce the next bucket. All ranks launch them in the same order."""
        bucket = self.buckets[len(self.in_flight)]
        flat = flatten_gradients(bucket).div_(self.comm.ranks)
        self.in_flight.append((flat, self.comm.all_reduce(flat, async_op=True)))

    def synchronize(self) -> None:
        """Turn every gradient into the mean over all ranks."""
        while len(self.in_flight) < len(self.buckets):
            self.launch_next()
        for bucket, (flat, work) in zip(self.buckets, self.in_flight, strict=True):
            work.wait()
            set_gradients(bucket, flat)
        self.in_flight.clear()


class OverlappedDDP(BucketedDDP):
    """Version 4: a bucket leaves as soon as backward has filled it, while backward goes on."""

    def __init__(self, module: nn.Module, comm: Comm, bucket_cap_mb: float = 25) -> None:
        super().__init__(module, comm, bucket_cap_mb)
        self.missing = [len(bucket) for bucket in self.buckets]  # gradients still to come
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.gradient_ready)

    def gradient_ready(self, parameter: Parameter) -> None:
        """Launch the buckets that are full; autograd calls this when a gradient is complete."""
        number = self.bucket_of[parameter]
        if number < len(self.in_flight):
            raise RuntimeError("these gradients have been sent: synchronize() after each backward")
        self.missing[number] -= 1
        while len(self.in_flight) < len(self.buckets) and not self.missing[len(self.in_flight)]:
            self.launch_next()

    def synchronize(self) -> None:
        """Turn every gradient into the mean over all ranks."""
        super().synchronize()
        self.missing = [len(bucket) for bucket in self.buckets]


def in_buckets(parameters: Sequence[Parameter], cap_mb: float) -> list[list[Parameter]]:
    """Group parameters into buckets, the last ones first, because backward reaches them first."""
    buckets: list[list[Parameter]] = []
    room = 0.0
    for parameter in reversed(parameters):
        if room <= 0:
            buckets.append([])
            room = cap_mb * 2**20
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets


def gradient_of(parameter: Parameter) -> Tensor:
    """A parameter's gradient, which backward must have computed."""
    if parameter.grad is None:
        raise RuntimeError(f"a parameter of shape {[*parameter.shape]} was not used in this step")
    return parameter.grad


def check_alike(parameters: Sequence[Parameter]) -> None:
    """Raise ValueError unless the parameters fit in one buffer."""
    if len({(parameter.dtype, parameter.device) for parameter in parameters}) > 1:
        raise ValueError("parameters of several dtypes or devices do not fit in one buffer")


def flatten_gradients(parameters: Sequence[Parameter]) -> Tensor:
    """All gradients end to end in a new 1-D tensor."""
    check_alike(parameters)
    return torch.cat([gradient_of(parameter).reshape(-1) for parameter in parameters])


def set_gradients(parameters: Sequence[Parameter], flat: Tensor) -> None:
    """Make each gradient a view of its part of `flat`."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)
