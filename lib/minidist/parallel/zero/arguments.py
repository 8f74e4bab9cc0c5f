"""Which optimizers, options and loss scalers go with a ZeroOptimizer."""

from __future__ import annotations

from typing import NoReturn

import torch.distributed as dist
from torch.optim import Optimizer

from minidist.parallel.checks import is_number
from minidist.parallel.zero.checks import NAME

GRADIENTS = ("averaged", "local")

# What these do to an element depends on others of its tensor, of which a rank has a piece.
WHOLE = {
    "Adafactor": "scales by the means of rows and columns",
    "LAMB": "scales by the norm of the parameter",
    "LARS": "scales by the norm of the parameter",
    "LBFGS": "takes products of whole gradients, and calls its closure several times",
    "Muon": "makes the whole matrix orthogonal",
    "SOAP": "takes products of the whole matrix",
    "Shampoo": "takes products of the whole matrix",
    "SparseAdam": "wants sparse gradients",
}


def check_arguments(
    optimizer_class: object, stage: object, gradients: object, bucket_cap_mb: object
) -> None:
    """Raise TypeError or ValueError if one of them is wrong."""
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise TypeError(
            "optimizer_class: expected a class such as torch.optim.AdamW, not an instance of it, "
            f"got {optimizer_class!r}"
        )
    for each in optimizer_class.__mro__:
        for name, why in WHOLE.items():
            if each.__name__.lower() == name.lower():
                raise ValueError(
                    f"optimizer_class: expected one that treats each element alone, as SGD and "
                    f"Adam do, got {optimizer_class.__name__}, which {why}"
                )
    if isinstance(stage, bool) or stage not in (1, 2):
        more = "; minidist.fully_shard is stage 3" if stage == 3 else ""
        raise ValueError(f"stage: expected 1 or 2, got {stage!r}{more}")
    if gradients not in (None, *GRADIENTS):
        raise ValueError(f"gradients: expected one of {', '.join(GRADIENTS)}, got {gradients!r}")
    if stage == 2 and gradients == "averaged":
        raise ValueError(
            "gradients: expected 'local' with stage=2, which reduces them itself, got 'averaged'"
        )
    if not (is_number(bucket_cap_mb) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb: expected a number of MiB above 0, got {bucket_cap_mb!r}")


def refuse_scaler() -> NoReturn:
    """Raise RuntimeError: local gradients are not what a GradScaler takes them for."""
    raise RuntimeError(
        f"rank {dist.get_rank()}: {NAME}: a GradScaler divides and checks what is in "
        "parameter.grad; with local gradients the mean ones are elsewhere, and each rank would "
        "decide alone whether to step. It works with stage=1 on DDP's gradients"
    )
