"""A parameter while it is sharded: tensors that refuse what a part of a parameter cannot do.

[Note: a shard is no weight] A shard has its parameter's name but not its meaning: a layer that
reads it computes something wrong, or nothing. That happens when a part of a unit is called without
the unit, or when its weights are read between two forwards. So a shard allows what optimizers,
norms and copies do without recording gradients, and refuses to take part in a layer's computation
or in anything that autograd would record.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is
from torch.nn import Parameter, functional
from torch.optim.optimizer import _foreach_supported_types as _optimizer_types
from torch.utils._foreach_utils import _foreach_supported_types as _foreach_types
from torch.utils._pytree import tree_leaves

no_torch_function = torch._C.DisableTorchFunctionSubclass  # within it, shards are plain tensors

MATRIX = {"matmul", "rmatmul", "mm", "bmm", "addmm", "addmv", "mv", "dot", "einsum"}
GRADIENT: Any = torch.Tensor.grad
NORMS = (torch.linalg.vector_norm, torch._foreach_norm)  # what clip_grad_norm_ calls


class Shard(Parameter):
    """This rank's part of a parameter: see [Note: a shard is no weight]."""

    title: Callable[[], str]  # such as "parameter 'weight' of unit 'blocks.0'", for messages
    whole_shape: torch.Size
    part_of: Callable[[torch.Tensor], torch.Tensor]  # the same rows of another full tensor

    @classmethod
    @eager
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with no_torch_function():
            if not _of_a_layer(func):
                result = func(*args, **(kwargs or {}))
                recorded = isinstance(result, torch.Tensor) and result.grad_fn
                if not (recorded and torch.is_grad_enabled()):
                    return result
            shard = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Shard))
            mine, whole = tuple(shard.shape), tuple(shard.whole_shape)
            raise RuntimeError(
                f"rank {dist.get_rank()}: {shard.title()} was used by {_name(func)} while it is "
                f"sharded: this rank has {mine} of {whole}. Call the unit's module, not a part of "
                "it; or call its unshard() before, and reshard() after"
            )


@cache  # an optimizer's step asks hundreds of times
def _of_a_layer(func: Any) -> bool:
    name = _name(func)
    return name.strip("_") in MATRIX or getattr(functional, name, None) is func


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


class ShardGradient(torch.Tensor):
    """A shard's gradient: a tensor like any other, except that torch cannot clip it by its norm.

    `torch.nn.utils.clip_grad_norm_` would scale each rank's shards by another factor, silently.
    """

    @classmethod
    @eager
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in NORMS:
            raise RuntimeError(
                f"rank {dist.get_rank()}: the norm of a shard's gradient is that of this rank's "
                "part alone: clip with minidist.clip_grad_norm_(module, max_norm) instead of "
                "torch's; if the part's own norm is meant, take it of grad.detach()"
            )
        with no_torch_function():
            return func(*args, **(kwargs or {}))


class Replaced(Parameter):
    """A parameter that a shard has replaced: to use it is an error.

    An optimizer that was built before `fully_shard` would update it without any effect; a module
    outside the unit, tied to it, would compute with old values.
    """

    title: Callable[[], str]

    @classmethod
    @eager
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ != "__get__" or func == GRADIENT.__get__:
            old = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Replaced))
            raise RuntimeError(
                f"rank {dist.get_rank()}: {old.title()} is used as it was before fully_shard. An "
                "optimizer must be built after it, from the module's parameters() of then; modules "
                "that share a parameter must be sharded together: fully_shard([one, other])"
            )
        with no_torch_function():
            return func(*args, **(kwargs or {}))


for _types in (_optimizer_types, _foreach_types):  # into which DTensor enters itself too
    _types.append(Shard)  # type: ignore[arg-type]  # or they would update one by one
