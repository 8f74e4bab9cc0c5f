"""A bucket by itself, and ways to run communication hooks on torch's DDP, the oracle."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course.training.models import mlp

Hook = Callable[[Any, Any], Any]
Gradients = dict[str, torch.Tensor]


class OneBucket:
    """Gradients as DDP hands them to a hook: views of one flat buffer."""

    def __init__(
        self,
        gradients: Sequence[torch.Tensor],
        parameters: Sequence[torch.Tensor] | None = None,
        index: int = 0,
        *,
        last: bool = True,
    ) -> None:
        self._buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
        parts = torch.split(self._buffer, [gradient.numel() for gradient in gradients])
        self._views = [a.view_as(b) for a, b in zip(parts, gradients, strict=True)]
        self._parameters, self._index, self._last = parameters, index, last

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        return self._views

    def parameters(self) -> list[torch.Tensor]:
        return list(self._views if self._parameters is None else self._parameters)


def torch_ddp(net: nn.Module, state: Any = None, hook: Hook | None = None, **options: Any) -> Any:
    """torch's DDP, with a hook if there is one."""
    model = DistributedDataParallel(net, **options)
    if hook:
        # under another name: by its own, torch refuses the one in bfloat16 without NCCL
        model.register_comm_hook(state, lambda state, bucket: hook(state, bucket))
    return model


def net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(5)
    return mlp((12, 40, 30, 5)).to(dtype)


def backwards(model: nn.Module, steps: int) -> list[Gradients]:
    """The gradients of each backward, on data of this rank's own."""
    source, found = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(steps):
        model.zero_grad()
        inputs = torch.randn(8, 12, generator=source, dtype=next(model.parameters()).dtype)
        (64 * model(inputs).square()).sum().backward()  # so that float16 has its 11 bits for all
        grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]
        found.append({name.removeprefix("module."): grad for name, grad in grads.items()})
    return found


class Alone:
    """A comm of one rank: it has nobody to talk to, so no process group is needed."""

    group, rank, ranks = None, 0, 1

    class Done:
        span = (0.0, 0.0)

        def wait(self) -> bool:
            return True

    def all_reduce(self, tensor: torch.Tensor, op: object = None, async_op: bool = False) -> Done:
        return self.Done()
