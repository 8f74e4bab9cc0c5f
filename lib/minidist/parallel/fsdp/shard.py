"""A parameter while it is sharded: this rank's part of it, which an optimizer can update.

[Note: a shard is no weight] A shard has its parameter's name, but not its values' meaning: a layer
that reads it computes something wrong, or nothing. That happens where a part of a unit is called
round the unit, or its weights are read between two forwards. So a shard lets through what
optimizers, norms and copies do without recording gradients, and refuses to take part in a layer's
computation, or in anything of which autograd would keep a record.

[Note: the old parameter] An optimizer that was built before wrapping holds parameters that no
module uses any more. Its steps would change nothing, and nothing would tell. So the old parameter
remembers what has become of it; a hook before every optimizer's step asks, and so does the wrapping
of another unit that uses the same parameter, and a gradient that arrives there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.nn import Parameter, functional
from torch.optim import Optimizer
from torch.optim.optimizer import _foreach_supported_types as _optimizers_types
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._foreach_utils import _foreach_supported_types as _utils_types
from torch.utils._pytree import tree_leaves

plain = torch._C.DisableTorchFunctionSubclass  # shards within it are tensors like any other
MATRIX = {
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "addmv",
    "mv",
    "dot",
    "einsum",
    "__matmul__",
    "__rmatmul__",
}


class Shard(Parameter):
    """This rank's part of a parameter: see [Note: a shard is no weight].

    Attributes:
        title: what messages call the parameter, such as "parameter 'weight' of unit 'blocks.0'".
        whole_shape: of the parameter.
    """

    title: Callable[[], str]
    whole_shape: torch.Size

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func` on the shard's own memory; RuntimeError if it takes it for the parameter."""
        kwargs = kwargs or {}
        if _is_layer(func):
            raise RuntimeError(_touched(args, kwargs, func))
        with plain():
            result = func(*args, **kwargs)
        if torch.is_grad_enabled() and isinstance(result, torch.Tensor) and result.grad_fn:
            raise RuntimeError(_touched(args, kwargs, func))
        return result


def cut_out(view: torch.Tensor, old: torch.Tensor, title: Callable[[], str]) -> Shard:
    """Make the shard of a parameter.

    Args:
        view: this rank's part.
        old: the parameter.
        title: for messages.
    """
    shard = Shard(view, old.requires_grad)
    shard.title, shard.whole_shape = title, old.shape
    return shard


# An optimizer runs its fused and many-at-once loops on types that it knows alone. PyTorch's DTensor
# enters itself into the same lists.
for _types in (_optimizers_types, _utils_types):
    if Shard not in _types:
        _types.append(Shard)  # type: ignore[arg-type]


def _is_layer(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name in MATRIX or getattr(functional, name, None) is func


def _touched(args: Any, kwargs: Any, func: Any) -> str:
    with plain():
        shard = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Shard))
        mine, whole = tuple(shard.shape), tuple(shard.whole_shape)
        title = shard.title()
    return (
        f"rank {dist.get_rank()}: {title} was used by {getattr(func, '__name__', func)} while it "
        f"is sharded: this rank has {mine} of {whole}. Call the unit's module, not a part of it; "
        "or call its unshard() before, and reshard() after"
    )


class _Fate:
    """What has become of a parameter: see [Note: the old parameter]."""

    def __init__(self, title: Callable[[], str]) -> None:
        self.title = title


class Replaced:
    """Remembers of parameters that shards have taken their place."""

    _watching: ClassVar[bool] = False

    @classmethod
    def note(cls, old: Parameter, title: Callable[[], str]) -> None:
        """A shard has taken the parameter's place."""
        old._minidist_fate = _Fate(title)  # type: ignore[attr-defined]
        if old.requires_grad:
            old.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(_refuse_gradient, title)
            )
        if not cls._watching:
            register_optimizer_step_pre_hook(_refuse_step)
            cls._watching = True

    @staticmethod
    def by(parameter: torch.Tensor) -> str | None:
        """What has taken its place; None if nothing has."""
        fate = getattr(parameter, "_minidist_fate", None)
        return fate.title() if isinstance(fate, _Fate) else None


def _refuse_step(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if title := Replaced.by(parameter):
                raise RuntimeError(
                    f"rank {dist.get_rank()}: {type(optimizer).__name__} holds {title} as it was "
                    "before fully_shard: build the optimizer after it, from the module's "
                    "parameters() of then"
                )


def _refuse_gradient(title: Callable[[], str], parameter: Parameter) -> None:
    parameter.grad = None
    raise RuntimeError(
        f"rank {dist.get_rank()}: {title()} got a gradient as it was before fully_shard: a module "
        "outside the unit still uses it. Wrap one module that holds both, or wrap before tying"
    )
