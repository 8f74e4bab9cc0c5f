"""A parameter while it is sharded: tensors that refuse what a part of a parameter cannot do.

[Note: a shard is no weight] A shard has its parameter's name but not its meaning: a layer that
reads it computes something wrong, or nothing. That happens when a part of a unit is called without
the unit, or when its weights are read between two forwards. So a shard allows what optimizers and
copies do without recording gradients, and refuses to take part in a layer's computation or in
anything that autograd would record.

[Note: a part has no norm] A norm, a mean or a product of matrices combines elements, of which other
ranks have some: the result would be of this rank's alone, and nobody would notice. So a shard, its
gradient, what is computed from these, and what an optimizer keeps beside them, made by
`zeros_like`, refuse it; `to_local()` leads out. Only the state of torch's own optimizers that treat
each element alone is plain, since refusing takes time in each step.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is
from torch.nn import Parameter, functional
from torch.optim.optimizer import _foreach_supported_types as _optimizer_types
from torch.utils._foreach_utils import _foreach_supported_types as _foreach_types
from torch.utils._pytree import tree_leaves

from minidist.comm.comm import Comm

no_torch_function = torch._C.DisableTorchFunctionSubclass  # within it, shards are plain tensors

MATRIX = {"matmul", "rmatmul", "mm", "bmm", "addmm", "addmv", "mv", "dot", "einsum"}
MATRIX |= {"baddbmm", "tensordot", "inverse", "matrix_exp", "matrix_power", "svd", "qr"}
COMBINE = {  # and all of torch.linalg
    *("norm", "renorm", "dist", "vdot", "inner", "trace", "logsumexp", "softmax", "cumsum"),
    *("sum", "nansum", "mean", "nanmean", "prod", "var", "std", "var_mean", "std_mean"),
    *("max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "all", "any", "count_nonzero"),
    *("median", "nanmedian", "mode", "quantile", "kthvalue", "topk", "sort", "argsort", "histc"),
    *("uniform", "normal", "kaiming_uniform", "kaiming_normal", "trunc_normal", "eye"),  # init
}
GRADIENT: Any = torch.Tensor.grad
VALUES: Any = (GRADIENT, *(getattr(torch.Tensor, each) for each in ("data", "T", "mT", "H", "mH")))
REFUSED = ("layer", "combines")


class Sharded:
    """The refusals that shards share with all that is computed from them."""

    plain_state = False  # while one of torch's own optimizers steps

    def to_local(self: Any) -> Any:
        """This rank's part as a plain tensor, in the same memory; as DTensor has it."""
        with no_torch_function():
            return self.detach().as_subclass(torch.Tensor)

    def __create_write_items__(self, *_: object) -> NoReturn:
        """Refuse torch.distributed.checkpoint: it takes plain tensors of one name for copies."""
        raise RuntimeError(
            f"rank {dist.get_rank()}: torch.distributed.checkpoint cannot reassemble the shards of "
            "minidist.fully_shard: save minidist.full_state_dict(module), or let each rank save "
            "its state dicts by torch.save, for the same rank of as many"
        )

    __create_chunk_list__ = __create_write_items__  # asked for where it loads


class ShardValues(Sharded, torch.Tensor):
    """A shard's gradient, or what is computed from shards: [Note: a part has no norm]."""

    @classmethod
    @eager
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (kind := _kind(func)) in REFUSED:
            _refuse(func)
        if kind == "unscales":
            _check_scaler(args[1])
        with no_torch_function():
            return _marked(kind, func(*args, **(kwargs or {})))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.to_local().__reduce_ex__(protocol)  # a file has plain tensors

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.clone()


class Shard(Sharded, Parameter):
    """This rank's part of a parameter: see [Note: a shard is no weight]."""

    title: Callable[[], str]  # such as "parameter 'weight' of unit 'blocks.0'", for messages
    whole_shape: torch.Size
    part_of: Callable[[torch.Tensor], torch.Tensor]  # the same rows of another full tensor
    owner: str  # whose part: "rank 0 of 2"
    comms: Sequence[Comm]  # between the ranks that have the other parts; then, if any, replicas'

    def register_hook(self, hook: object) -> NoReturn:
        """Refuse: no backward of this rank computes its gradient."""
        raise RuntimeError(
            f"rank {dist.get_rank()}: {self.title()}: register_hook would never call it, for its "
            "gradient is reduced from all ranks'; use register_post_accumulate_grad_hook"
        )

    @classmethod
    @eager
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (kind := _kind(func)) == "combines":
            _refuse(func)
        with no_torch_function():
            if kind != "layer":
                result = func(*args, **(kwargs or {}))
                recorded = isinstance(result, torch.Tensor) and result.grad_fn
                if not (recorded and torch.is_grad_enabled()):
                    return _marked(kind, result)
            shard = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Shard))
            mine, whole = tuple(shard.shape), tuple(shard.whole_shape)
            raise RuntimeError(
                f"rank {dist.get_rank()}: {shard.title()} was used by {_name(func)} while it is "
                f"sharded: this rank has {mine} of {whole}. Call the unit's module, not a part of "
                "it; or call its unshard() before, and reshard() after"
            )


@cache  # an optimizer's step asks hundreds of times
def _kind(func: Any) -> str:
    """A function's way with a shard; "" if its result is to refuse what the shard refuses."""
    name = _name(func)
    word = name.strip("_").removeprefix("foreach_")
    if word in MATRIX or getattr(functional, name, None) is func:
        return "layer"
    if word in COMBINE or word.startswith("linalg_"):
        return "combines"
    if func is torch._amp_foreach_non_finite_check_and_unscale_:
        return "unscales"
    if name == "__get__":
        return "" if func.__self__ in VALUES else "plain"
    if word.endswith("_like"):
        return "like"
    in_place = name.endswith("_") and not name.endswith("__")
    return "plain" if in_place else ""


def _marked(kind: str, result: Any) -> Any:
    if kind and (kind != "like" or Sharded.plain_state):
        return result
    if type(result) is torch.Tensor:
        return result.as_subclass(ShardValues)
    if type(result) in (list, tuple):
        return type(result)(_marked(kind, each) for each in result)
    return result


def _check_scaler(found_inf: torch.Tensor) -> None:
    """Refuse GradScaler, whose flag is a scalar; ShardedGradScaler's, of one element, is summed."""
    if found_inf.ndim == 0:
        raise RuntimeError(
            f"rank {dist.get_rank()}: GradScaler looks only at this rank's shards, so that ranks "
            "would skip different steps; take ShardedGradScaler of torch.distributed.fsdp."
            "sharded_grad_scaler"
        )


def _refuse(func: Any) -> NoReturn:
    raise RuntimeError(
        f"rank {dist.get_rank()}: {_name(func)} takes a whole tensor, and this rank has a part of "
        "one that minidist.fully_shard has split. For the norm of the gradients call minidist."
        "clip_grad_norm_(module, max_norm), for whole tensors minidist.full_gradients(module) or "
        "full_state_dict(module); if this rank's part is meant, pass its to_local()"
    )


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


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
