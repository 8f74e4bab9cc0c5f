"""Where autograd comes into a module and where it leaves it, and the casts at the same places.

[Note: in and out] Backward comes into a module where the gradient of one of its outputs is there: a
hook on that tensor is called. It has left the module when the gradients of all its inputs are
there; but an input may be used elsewhere too, so the module is given a view of it, of which the
gradient is complete when the module's own share is. Autograd takes what was recorded last first: so
when it comes to that view it has been everywhere in the module, at the parameters too.

[Note: outputs that are views] A write into a tensor, as `x += y`, takes the place of what
made it. Our hook stays with what it was on, and is called. But if the tensor was a view, autograd
writes its history anew, without us; so there is a hook also on what made the tensor under the view,
if that was made in the module.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves, tree_map_only

Callback = Callable[[], None]


def on_entry(output: object, inputs: object, callback: Callback) -> bool:
    """Call back when backward comes in by one of the outputs; return whether it can."""
    if not torch.is_grad_enabled():
        return False
    given = {tensor if tensor._base is None else tensor._base for tensor in tensors(inputs)}
    found = [each for each in tensors(output) if each.requires_grad and not each.is_leaf]
    for tensor in found:
        tensor.register_hook(lambda _: callback())  # type: ignore[no-untyped-call]
        under = tensor._base
        if under is not None and under.grad_fn and under not in given:
            under.grad_fn.register_prehook(lambda _: callback())
    return bool(found)


def on_exit(inputs: Any, callback: Callback) -> Any:
    """Call back when backward has left by all inputs; return the inputs to use instead."""
    views: list[torch.Tensor] = []

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor = tensor.view_as(tensor)
            views.append(tensor)
        return tensor

    if torch.is_grad_enabled():
        inputs = tree_map_only(torch.Tensor, watch, inputs)
    if views:
        register_multi_grad_hook(views, lambda _: callback())
    return inputs


def cast(values: Any, dtype: torch.dtype | None) -> Any:
    """The floating-point tensors among the values in another dtype; None: as they are."""

    def to(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return values if dtype is None else tree_map_only(torch.Tensor, to, values)


def tensors(values: object) -> Iterator[torch.Tensor]:
    """Those in containers, and in dataclasses, which count as leaves there."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors([getattr(leaf, field.name) for field in fields(leaf)])
