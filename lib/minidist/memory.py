"""What a rank should hold while it trains, and what it does hold, in bytes.

So far the *state*: what lives on from one step to the next, that is weights, gradients and what the
optimizer keeps. Rajbhandari et al. (2020), "ZeRO", section 3.1, count it in the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Policy:
    """Which dtype each part of the state has.

    Attributes:
        name: for captions.
        weights: of the weights that forward and backward use.
        gradients: of the gradients.
        master: of a second, finer copy of the weights, to which the optimizer adds its small
            updates; None: there is none, the optimizer updates the weights themselves.
        moments: of the optimizer's running averages.
    """

    name: str
    weights: torch.dtype
    gradients: torch.dtype
    master: torch.dtype | None
    moments: torch.dtype


FP32 = Policy("fp32", torch.float32, torch.float32, None, torch.float32)
MIXED = Policy("mixed", torch.bfloat16, torch.bfloat16, torch.float32, torch.float32)

OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2}  # moments that it keeps of each parameter


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
    if optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise ValueError(f"state: optimizer must be one of {known}, got {optimizer!r}")
    count = int(parameters)
    if count != parameters or count < 0:
        raise ValueError(f"state: parameters must be whole and >= 0, got {parameters!r}")
    return StateBytes(
        weights=count * policy.weights.itemsize,
        gradients=count * policy.gradients.itemsize,
        master=count * policy.master.itemsize if policy.master else 0,
        moments=count * policy.moments.itemsize * OPTIMIZERS[optimizer],
    )


def held(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> StateBytes:
    """Measure the state of a model from the tensors that it and its optimizer hold now.

    What the optimizer updates and the module does not own counts as master weights. Left out are
    the module's buffers and the optimizer's counters of steps: 4 bytes a parameter tensor in Adam.
    """
    own = list(module.parameters())
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    mine = set(map(id, own))
    master = [parameter for parameter in updated if id(parameter) not in mine]
    moments = [
        value
        for parameter, kept in optimizer.state.items()
        for name, value in kept.items()
        if name != "step" and torch.is_tensor(value) and value.shape == parameter.shape
    ]
    everything = {id(parameter): parameter for parameter in own + updated}.values()
    gradients = [parameter.grad for parameter in everything if parameter.grad is not None]
    return StateBytes(*map(_nbytes, (own, gradients, master, moments)))


def _nbytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
