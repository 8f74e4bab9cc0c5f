"""Steps of optimizers, which wrappers compare between ranks.

A rank that skips a step alone, say because its own loss is NaN, has other weights from then on.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

_steps: Any = WeakIdKeyDictionary()  # parameter → how often an optimizer has stepped on it


def _count(optimizer: Optimizer, *_: object) -> None:
    if not torch.compiler.is_compiling():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _steps[parameter] = _steps.get(parameter, 0) + 1


register_optimizer_step_pre_hook(_count)


def steps_on(parameter: Parameter) -> int:
    return int(_steps.get(parameter, 0))


def have_stepped(parameters: Iterable[Parameter]) -> bool:
    """True if an optimizer has stepped on one of these since the last call of this."""
    steps = [_steps.pop(each, 0) for each in parameters]
    return any(steps)
