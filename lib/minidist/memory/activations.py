"""Activations: what autograd keeps of the forward pass until backward has used it.

[Note: what an operation keeps] Backward needs what the derivative is made of. The derivative of a
product with respect to a weight is the other factor: a linear layer keeps its input. That of tanh
is 1 - tanh², so its output will do. A sum needs nothing, and neither does a view. `RULES` says so
for each operation; with the shapes of the tensors that is the whole prediction. Several operations
may keep one tensor, as a ReLU its output and the next layer its input: it is there once. What was
there before, such as weights and inputs, is not an activation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from minidist.errors import checked


class Rule(NamedTuple):
    inputs: tuple[int, ...] = ()  # places of arguments that are kept
    output: bool = False
    beside: Callable[[torch.Tensor], int] = lambda first: 0  # bytes made of its first argument


def _rows(first: torch.Tensor) -> int:
    return math.prod(first.shape[:-1])


# Beside its tensors a LayerNorm keeps a mean and a deviation for each vector (on a GPU in fp32),
# attention the sum of the softmax in fp32, cross-entropy the logarithms of all probabilities.
NOTHING, ATTENTION = Rule(), "scaled_dot_product_attention"
RULES = {
    "linear": Rule(inputs=(0,)),
    "relu": Rule(output=True),
    "tanh": Rule(output=True),
    "gelu": Rule(inputs=(0,)),
    "layer_norm": Rule(inputs=(0,), beside=lambda x: 2 * _rows(x) * x.itemsize),
    ATTENTION: Rule(inputs=(0, 1, 2), output=True, beside=lambda query: 4 * _rows(query)),
    "cross_entropy": Rule(inputs=(1,), beside=lambda x: x.nbytes + x.itemsize),
    "square": Rule(inputs=(0,)),
    "embedding": Rule(inputs=(0,)),
    **dict.fromkeys(("add", "sum", "mean"), NOTHING),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "transpose", "unbind"), NOTHING),
    "getitem": NOTHING,
}


@checked
def expected(forward: Callable[[], Any]) -> dict[str, int]:
    """Predict what a forward pass keeps, by the `RULES`: operation → bytes.

    A tensor that several operations keep counts for the first of them. On the meta device the
    forward pass takes no memory and no time, so that a model of any size can be predicted.
    """
    with _Watch() as watch:
        forward()
    return {name: nbytes for name, nbytes in watch.kept.items() if nbytes}


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.kept: Counter[str] = Counter()
        self._made: dict[int, torch.UntypedStorage] = {}  # held, or its number might be used again
        self._counted: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output, name = func(*args, **(kwargs or {})), func.__name__.strip("_")
        outputs = list(_tensors(output))
        if any(tensor.requires_grad for tensor in outputs):
            if name not in RULES:
                known = ", ".join(sorted(RULES))
                raise NotImplementedError(f"activations: no rule for {name!r}, only for: {known}")
            if name == ATTENTION and output.is_meta:
                # The fused kernel, which the meta device has not, lays its output out like this.
                outputs = [output := output.transpose(1, 2).contiguous().transpose(1, 2)]
            rule = RULES[name]
            inputs = (args[place] for place in rule.inputs)
            kept = [tensor for tensor in inputs if _number(tensor) in self._made]
            for tensor in [*kept, *outputs] if rule.output else kept:
                if _number(tensor) not in self._counted:
                    self._counted.add(_number(tensor))
                    self.kept[name] += tensor.untyped_storage().nbytes()
            self.kept[name] += rule.beside(args[0])
        # An output that is a view of an argument is nothing new.
        there = {_number(tensor) for tensor in _tensors((args, kwargs))}
        new = [tensor for tensor in outputs if _number(tensor) not in there]
        self._made |= {_number(tensor): tensor.untyped_storage() for tensor in new}
        return output


@checked
def saved(forward: Callable[[], Any], beside: Iterable[torch.Tensor] = ()) -> int:
    """Count what a forward pass does keep: bytes of memory that autograd puts aside.

    What is `beside`, parameters and inputs, is there anyway and does not count.
    """
    not_counted = {_number(tensor) for tensor in beside}
    kept: dict[int, torch.UntypedStorage] = {}

    def put_aside(tensor: torch.Tensor) -> torch.Tensor:
        if _number(tensor) not in not_counted:
            kept[_number(tensor)] = tensor.untyped_storage()
        return tensor.detach()  # an output that is put aside itself would hold its own graph

    with saved_tensors_hooks(put_aside, lambda tensor: tensor):
        result = forward()
    del result  # until here the graph has held what was put aside
    return sum(storage.nbytes() for storage in kept.values())


def _number(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _tensors(nested: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor))
