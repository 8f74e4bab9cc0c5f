"""The state of training: the bytes that live on from one step to the next, counted and measured.

Weights, gradients, and what the optimizer keeps: Rajbhandari et al. (2020), "ZeRO", section 3.1,
count them in the same parts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

from minidist.formulas import memory as formulas
from minidist.formulas.inputs import Each
from minidist.schedule.checks import amount, whole_number


class Strategy(StrEnum):
    """Ways in which ranks share the work of training a model, the simplest first."""

    SINGLE = "single"
    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    FSDP_KEPT = "fsdp_kept"  #: with `reshard_after_forward=False`
    FSDP = "fsdp"
    HSDP = "hsdp"

    @property
    def stage(self) -> int:
        """Stage of ZeRO that shards the same parts of the state."""
        return formulas.STAGES[self]


@dataclass(frozen=True)
class DtypePolicy:
    """Dtypes of the parts of the state.

    `master` is that of a second, finer copy of the weights, to which the optimizer adds its small
    updates; None: there is none, the optimizer updates the weights themselves. `compute` is that
    of forward and backward, if it is not the weights' own.
    """

    name: str
    weights: torch.dtype
    gradients: torch.dtype
    master: torch.dtype | None
    moments: torch.dtype  #: of the optimizer's running averages
    compute: torch.dtype | None = None

    @property
    def computes(self) -> torch.dtype:
        """The dtype of forward and backward, in which FSDP gathers weights."""
        return self.compute or self.weights


# What training scripts do: `torch.autocast`, or FSDP2 with param_dtype=bf16 and reduce_dtype=fp32.
AUTOCAST = DtypePolicy(
    "autocast", torch.float32, torch.float32, None, torch.float32, torch.bfloat16
)
FP32 = DtypePolicy("fp32", torch.float32, torch.float32, None, torch.float32, torch.float32)
# The ZeRO paper's: 2 + 2 + 12 bytes per parameter.
MIXED = DtypePolicy(
    "mixed", torch.bfloat16, torch.bfloat16, torch.float32, torch.float32, torch.bfloat16
)

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
        return self.master + self.moments

    @property
    def total(self) -> int:
        """The bytes of all parts."""
        return self.weights + self.gradients + self.optimizer


def state(parameters: int, policy: DtypePolicy = FP32, optimizer: str = "adam") -> StateBytes:
    """Predict the state of a model. For one parameter: `state(1)`.

    Args:
        optimizer: "sgd", "momentum" (SGD with momentum) or "adam" (Adam and AdamW).
    """
    if amount("state: parameters", parameters) % 1:
        raise ValueError(f"state: parameters must be whole and >= 0, got {parameters!r}")
    each = bytes_each(policy, optimizer)
    parts = each.weights, each.gradients, each.master, int(each.moments)
    return StateBytes(*(int(parameters) * part for part in parts))


def bytes_each(policy: DtypePolicy = FP32, optimizer: str = "adam", foreach: bool = True) -> Each:
    """Bytes of one parameter, as formulas read them; `foreach`: as in AdamW."""
    if not isinstance(policy, DtypePolicy):
        raise TypeError(f"policy: expected a DtypePolicy, such as FP32, got {policy!r}")
    if optimizer not in [*OPTIMIZERS]:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
    return Each(
        weights=policy.weights.itemsize,
        gradients=policy.gradients.itemsize,
        master=policy.master.itemsize if policy.master else 0,
        moments=policy.moments.itemsize * OPTIMIZERS[optimizer],
        compute=policy.computes.itemsize,
        update=policy.moments.itemsize if foreach and optimizer == "adam" else 0,
    )


def share(model: StateBytes, ranks: int, stage: int) -> StateBytes:
    """A rank's part of the state when ZeRO shards parts of it over `ranks`, without padding.

    Args:
        model: the state of the whole model, as `state` gives it.
        ranks: at least 1; a part that they do not divide is rounded up.
        stage: 0 (data parallelism) to 3. Stage 1 shards what only the optimizer uses, 2 the
            gradients too, 3 the weights too: Rajbhandari et al. (2020), section 3.1 and figure 1.
    """
    if not isinstance(model, StateBytes):
        raise TypeError(f"share: model: expected what state() returns, got {model!r}")
    if whole_number("ranks", ranks) < 1 or whole_number("stage", stage) not in range(4):
        raise ValueError(f"share: expected ranks >= 1 and a stage 0 to 3, got {ranks} and {stage}")
    each = Each(model.weights, model.gradients, model.master, model.moments, 0, 0)
    found = formulas.state(1, each, ranks, stage)
    parts = ("weights", "gradients", "master", "moments")
    return StateBytes(*(int(found[part]) for part in parts))


def held(module: nn.Module, optimizer: torch.optim.Optimizer) -> StateBytes:
    """Measure the state of a model from the memory that it and its optimizer hold now.

    Between two steps, whatever wraps the module. Memory in which several tensors lie counts once,
    with its padding. What the optimizer updates and the module does not own counts as master
    weights. Left out are buffers, and the optimizer's counters of steps: 4 bytes a tensor in Adam.
    """
    optimizer = getattr(optimizer, "inner", optimizer)
    for name, given, kind in (
        ("module", module, nn.Module),
        ("optimizer", optimizer, torch.optim.Optimizer),
    ):
        if not isinstance(given, kind):
            raise TypeError(f"held: {name}: expected a torch {kind.__name__}, got {given!r}")
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
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    new = {number: each.nbytes() for number, each in storages.items() if number not in seen}
    seen.update(new)
    return sum(new.values())
