"""A step with loss scaling, and what came of it."""

import torch
from torch.optim import Optimizer


def scaled_step(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> tuple[float, bool]:
    """The scale after it, and whether this rank's parameters have changed."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    before = [each.detach().clone() for each in parameters]
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), not all(map(torch.equal, before, parameters))
