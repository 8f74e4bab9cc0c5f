"""A bucket by itself, and ways to run communication hooks on torch's DDP, the oracle."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course.training.models import mlp
from minidist.parallel.ddp.bucket import Bucket

Hook = Callable[[Any, Any], Any]
Gradients = dict[str, torch.Tensor]


def filled(
    gradients: Sequence[torch.Tensor],
    parameters: Sequence[Any] | None = None,
    index: int = 0,
    *,
    last: bool = True,
) -> Bucket:
    """A bucket with these gradients."""
    bucket = Bucket(index, [("", each) for each in parameters or gradients], last=last)
    for view, gradient in zip(bucket.gradients(), gradients, strict=True):
        view.copy_(gradient)
    return bucket


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
