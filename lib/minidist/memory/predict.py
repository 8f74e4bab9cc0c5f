"""What a rank should hold while it trains, and what it does hold, in bytes.

The *state* lives on from one step to the next: weights, gradients and what the optimizer keeps.
Rajbhandari et al. (2020), "ZeRO", section 3.1, count it in the same parts. `state` multiplies for a
whole model, `share` divides among ranks; `predict` does it for a module, with padding and with what
is whole for a while only, and `held` measures. For what is there in between see
`minidist.memory.meter`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from minidist.memory.cuts import STRATEGIES, Cut, Flight, cuts, parts_in_flight, units_in_flight
from minidist.memory.precision import FP32, MIXED, OPTIMIZERS, Policy, moments_of

__all__ = [
    "FP32",
    "MIXED",
    "OPTIMIZERS",
    "Policy",
    "RankBytes",
    "StateBytes",
    "held",
    "predict",
    "share",
    "state",
]


@dataclass(frozen=True)
class StateBytes:
    """Bytes of each part of the state of training."""

    weights: int
    gradients: int
    master: int
    moments: int

    @property
    def optimizer(self) -> int:
        """Bytes that only the optimizer uses, in master weights and moments."""
        return self.master + self.moments

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return self.weights + self.gradients + self.optimizer


def state(parameters: int, policy: Policy = FP32, optimizer: str = "adam") -> StateBytes:
    """Predict the state of a model. For one parameter: `state(1)`.

    Args:
        parameters: their number, at least 0.
        policy: `FP32`, `MIXED` or your own.
        optimizer: "sgd", "momentum" (SGD with momentum) or "adam" (Adam and AdamW).

    Raises:
        ValueError: an unknown optimizer, or parameters negative or not whole.
    """
    moments = moments_of("state", optimizer)
    count = int(parameters)
    if count != parameters or count < 0:
        raise ValueError(f"state: parameters must be whole and >= 0, got {parameters!r}")
    return StateBytes(
        weights=count * policy.weights.itemsize,
        gradients=count * policy.gradients.itemsize,
        master=count * policy.master.itemsize if policy.master else 0,
        moments=count * policy.moments.itemsize * moments,
    )


def share(whole: StateBytes, ranks: int, stage: int) -> StateBytes:
    """What a rank holds of the state when ZeRO cuts parts of it among `ranks`, without padding.

    Args:
        whole: of the whole model, as `state` gives it.
        ranks: at least 1; a part that they do not divide is rounded up.
        stage: 0 (data parallelism) to 3. Stage 1 cuts what only the optimizer uses, 2 the gradients
            too, 3 the weights too: Rajbhandari et al. (2020), "ZeRO", section 3.1 and figure 1.

    Raises:
        ValueError: ranks or stage out of range.
    """
    if ranks < 1 or stage not in range(4):
        raise ValueError(f"share: expected ranks >= 1 and a stage 0 to 3, got {ranks} and {stage}")
    parts = {"master": 1, "moments": 1, "gradients": 2, "weights": 3}  # from which stage on
    cut = {name: -(-getattr(whole, name) // ranks) for name, at in parts.items() if stage >= at}
    return replace(whole, **cut)


@dataclass(frozen=True)
class RankBytes:
    """Bytes that one rank takes.

    Attributes:
        parameters, gradients, master, moments: the state, padding included.
        unsharded: the most that is whole for a while only, of units or parts in flight.
        buckets: in which gradients travel, where they are kept beside the gradients.
        activations: as they were passed.
        at_begin: what of `unsharded` is there when backward begins, with all activations; and of
            gradients, if they are views of buckets.
    """

    parameters: int
    gradients: int
    master: int
    moments: int
    unsharded: int = 0
    buckets: int = 0
    activations: int = 0
    at_begin: int = 0

    @property
    def state(self) -> StateBytes:
        """What lives on from step to step, as `held` measures it."""
        return StateBytes(self.parameters, self.gradients, self.master, self.moments)

    @property
    def total(self) -> int:
        """Bytes of all parts, which are never there all at once."""
        return sum(self.parts.values())

    @property
    def peak(self) -> int:
        """The most at any time, if a step begins by freeing the gradients of the last one.

        Either as backward begins, with all activations and no gradients yet, or as it ends. Left
        out is what an operation takes while it runs, also one of the optimizer.
        """
        always = self.parameters + self.master + self.moments + self.buckets
        return always + max(self.at_begin + self.activations, self.unsharded + self.gradients)

    @property
    def parts(self) -> dict[str, int]:
        """Name → bytes, for tables and pictures."""
        names = [field.name for field in fields(self) if field.name != "at_begin"]
        return {name: getattr(self, name) for name in names}


def predict(
    module: nn.Module,
    ranks: int,
    strategy: str,
    *,
    rank: int = 0,
    policy: Policy | None = None,
    optimizer: str = "adam",
    activations: int = 0,
    gradient_as_bucket_view: bool = False,
    reshard_after_forward: bool = True,
    prefetch: bool = True,
    **how: Any,
) -> RankBytes:
    """Predict what a rank takes to train a module; its state to the byte.

    Args:
        module: the whole one, not wrapped; it may be on the meta device.
        ranks: how many train it together.
        strategy: "ddp", "zero1" (on gradients that DDP has averaged), "zero2" or "zero3".
        rank: of which; padding and uneven rows make ranks differ a little.
        policy: of dtypes; None: every part has its parameter's own. With "zero3" and master weights
            it is as in PyTorch's FSDP2: the shards are those, and are cast when they are gathered.
        optimizer: as in `state`.
        activations: bytes of them; `minidist.memory.activations.expected` tells.
        gradient_as_bucket_view: as in `DistributedDataParallel`.
        reshard_after_forward, prefetch: as in `fully_shard`.
        how: `bucket_cap_mb`, `layout` and `units` of `minidist.memory.cuts.cuts`.

    Raises:
        ValueError: an unknown strategy, optimizer or unit, or a rank that there is not.
    """
    moments = moments_of("predict", optimizer)
    if strategy not in STRATEGIES or not 0 <= rank < ranks:
        raise ValueError(
            f"predict: expected one of {', '.join(STRATEGIES)} and a rank from 0 to {ranks - 1}, "
            f"got {strategy!r} and {rank}"
        )
    laid = cuts(module, strategy, ranks, rank, **how)
    trained = [cut for cut in laid if cut.trains]
    size = partial(_itemsize, policy, strategy == "zero3")
    gradients = sum(cut.whole * size("gradients", cut) for cut in trained)
    with_ddp, flight = strategy in ("ddp", "zero1"), Flight(0, 0)
    used, sent = (partial(_itemsize, policy, False, name) for name in ("weights", "gradients"))
    if strategy == "zero2":
        flight = parts_in_flight(laid, sent)
    if strategy == "zero3":
        flight = units_in_flight(laid, used, sent, reshard_after_forward, prefetch)
    return RankBytes(
        parameters=sum(
            (cut.slice if strategy == "zero3" else cut.padded) * size("weights", cut)
            for cut in laid
        ),
        gradients=gradients
        if with_ddp
        else sum(cut.slice * size("gradients", cut) for cut in trained),
        master=sum(cut.own * size("master", cut) for cut in trained),
        moments=sum(cut.own * size("moments", cut) for cut in trained) * moments,
        unsharded=flight.most,
        buckets=gradients if with_ddp and not gradient_as_bucket_view else 0,
        activations=activations,
        at_begin=gradients if with_ddp and gradient_as_bucket_view else flight.begin,
    )


def _itemsize(policy: Policy | None, shards_are_masters: bool, part: str, cut: Cut) -> int:
    """Bytes of an element of a part: see `predict`."""
    if policy is None:
        return cut.dtype.itemsize if part != "master" else 0
    if shards_are_masters and policy.master and part != "moments":
        return policy.master.itemsize if part != "master" else 0
    dtype: torch.dtype | None = getattr(policy, part)
    return dtype.itemsize if dtype else 0


def held(module: nn.Module, optimizer: torch.optim.Optimizer) -> StateBytes:
    """Measure the state of a model from the memory that it and its optimizer hold now.

    Between two steps, whatever wraps the module; of a ZeroOptimizer its inner optimizer. A piece of
    memory in which several tensors lie counts once, with its padding. What the optimizer updates
    and the module does not own counts as master weights. Left out are the module's buffers, what
    communication has for itself, and the optimizer's counters of steps: 4 bytes a tensor in Adam.
    """
    optimizer = getattr(optimizer, "inner", optimizer)
    own = list(module.parameters())
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = [
        value
        for parameter, kept in optimizer.state.items()
        for name, value in kept.items()
        if name != "step" and torch.is_tensor(value) and value.shape == parameter.shape
    ]
    gradients = [tensor.grad for tensor in own + updated if tensor.grad is not None]
    seen: set[int] = set()
    return StateBytes(
        weights=_nbytes(own, seen),
        gradients=_nbytes(gradients, seen),
        master=_nbytes(updated, seen),
        moments=_nbytes(moments, seen),
    )


def _nbytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Of the memory that they lie in, as far as it was not `seen` before."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    new = {number: each.nbytes() for number, each in storages.items() if number not in seen}
    seen.update(new)
    return sum(new.values())
