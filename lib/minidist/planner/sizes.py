"""The numbers that a plan needs of a model: a handful, counted or in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from minidist.formulas import models
from minidist.formulas.inputs import Shape
from minidist.memory.activations import expected, saved
from minidist.schedule.checks import amount, whole_number

OPTIONAL = (  # sizes that a model may lack, or that nobody has counted
    "stream", "stream_checkpointed", "stream_selective", "attention", "head",
    "activations_selective", "keys", "routed", "experts",
)  # fmt: skip
Inputs = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs


class Sizes(Shape):
    """Sizes of a model, counted or in closed form; see `Shape` for the fields."""

    @property
    def rest(self) -> int:
        """Parameters outside the blocks, such as an embedding, which FSDP's outermost unit has."""
        return models.root(self)

    @classmethod
    def gpt(cls, layers: int, width: int, vocabulary: int, context: int) -> Sizes:
        """Sizes of a GPT whose head is its embedding's matrix: see `models.gpt`."""
        return cls._in_closed_form(
            models.gpt, layers=layers, width=width, vocabulary=vocabulary, context=context
        )

    @classmethod
    def llama(
        cls,
        layers: int,
        width: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        vocabulary: int,
        context: int,
        tied: bool = False,
    ) -> Sizes:
        """Sizes of a Llama, `tied` if head and embedding are: see `models.llama`."""
        return cls._in_closed_form(
            partial(models.llama, tied=tied), layers=layers, width=width, hidden=hidden,
            heads=heads, kv_heads=kv_heads, vocabulary=vocabulary, context=context,
        )  # fmt: skip

    @classmethod
    def mixture(
        cls,
        layers: int,
        width: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        vocabulary: int,
        context: int,
        *,
        experts: int,
        active: int,
        beside: int = 0,
    ) -> Sizes:
        """Sizes of a Llama with experts: see `models.mixture`.

        Args:
            layers: all of which have experts.
            width: of the model.
            hidden: width inside an expert.
            heads: of attention.
            kv_heads: of keys and of values.
            vocabulary: tokens that there are.
            context: tokens of a sample.
            experts: of a layer, among which a router chooses.
            active: experts that a token goes to.
            beside: width inside an expert that all tokens share, 0 if there is none.

        Raises ValueError or TypeError that names the argument.
        """
        whole_number("beside", beside, 0)
        whole_number("experts", experts, 1)
        if whole_number("active", active, 1) > experts:
            raise ValueError(f"active: expected at most the {experts} experts, got {active}")
        return cls._in_closed_form(
            partial(models.mixture, beside=beside), layers=layers, width=width, hidden=hidden,
            heads=heads, kv_heads=kv_heads, vocabulary=vocabulary, context=context,
            experts=experts, active=active,
        )  # fmt: skip

    @classmethod
    def _in_closed_form(cls, formula: Callable[..., Any], **shape: int) -> Sizes:
        for name, number in shape.items():
            whole_number(name, number, 1)
        found: dict[str, Any] = formula(**shape)
        found |= {name: tuple(found[name]) for name in ("before", "block", "after")}
        return cls(**found | {"matrices": tuple(map(tuple, found["matrices"]))})

    @classmethod
    def of(cls, module: nn.Module, sample: Tensor, units: Sequence[str] = ()) -> Sizes:
        """Count the sizes of a module, on the meta device: that takes no memory and no time.

        Args:
            module: the bare one, not wrapped; it may be on the meta device. It returns a tensor,
                or a dict or a tuple; a loss is computed of the first tensor that has a gradient.
            sample: an input, with samples along its first dimension; of ids [samples, tokens].
            units: names of the blocks; those of the largest `nn.ModuleList` if there are none.
        """
        check_module(module, sample, units)
        names = list(units) or _blocks(module)
        inside = [sum(p.numel() for p in module.get_submodule(n).parameters()) for n in names]
        everything = sum(parameter.numel() for parameter in module.parameters())
        matrices = [parameter for parameter in module.parameters() if parameter.ndim > 1]
        inputs: dict[str, Inputs] = {}
        given: Inputs = (sample.to("meta"),), {}
        masked = _Masked()
        with FlopCounterMode(display=False) as counter, masked, ExitStack() as hooks:
            for name in names:

                def note(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                    inputs[name] = args, kwargs

                unit = module.get_submodule(name)
                hooks.enter_context(unit.register_forward_pre_hook(note, with_kwargs=True))
            output = functional_call(module, _on_meta(module), *given)
        kept = _kept(module, given)
        again = [_kept(module.get_submodule(name), each) for name, each in inputs.items()]
        operations = counter.get_total_flops() - masked.operations
        before, block, after = _in_order(module, names)
        return cls(
            parameters=everything,
            units=max(1, len(names)),
            largest_unit=max(inside, default=everything),
            operations=operations / len(sample),
            activations=kept / len(sample),
            activations_checkpointed=(kept - sum(again) + max(again, default=0)) / len(sample),
            outputs=_first(output).numel() / len(sample),
            width=max((min(len(p), p.numel() // len(p)) for p in matrices), default=1),
            tokens=1 if sample.is_floating_point() else math.prod(sample.shape[1:]),
            attention=masked.operations / len(sample),
            before=before,
            block=block,
            after=after,
            matrices=_matrices(module, names),
        )


def check_sizes(sizes: Sizes) -> None:
    """Raise ValueError or TypeError for a size that no model has, by its name."""
    for name, number in sizes._asdict().items():
        if name in ("parameters", "units", "largest_unit", "width", "tokens"):
            whole_number(f"sizes.{name}", number, 1)
        elif name in ("before", "block", "after"):
            for count in number:
                whole_number(f"sizes.{name}", count, 1)
        elif name == "matrices":
            for each in number:
                for side in each:
                    above_zero(f"sizes.{name}", side)
        elif name in OPTIONAL:
            amount(f"sizes.{name}", number)
        else:
            above_zero(f"sizes.{name}", number)
    if sizes.units * sizes.largest_unit > sizes.parameters:
        raise ValueError(
            f"sizes.units: expected equal blocks of {sizes.largest_unit} parameters, no more than "
            f"fit into all {sizes.parameters}, got {sizes.units}"
        )


def above_zero(argument: str, value: float) -> None:
    """Raise ValueError or TypeError for what is no finite number above 0."""
    if amount(argument, value) == 0:
        raise ValueError(f"{argument}: expected a number above 0, got {value}")


def check_module(module: nn.Module, sample: Tensor, units: Sequence[str]) -> None:
    """Raise ValueError for a module, a sample or names of blocks that would be counted wrongly."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module: expected an nn.Module, got {module!r}")
    if not isinstance(sample, Tensor) or not sample.ndim or not len(sample):
        raise ValueError(f"sample: expected a tensor of at least one sample, got {sample!r}")
    if getattr(module, "batch_first", True) is False:
        raise ValueError("model: expected samples along the first dimension, got batch_first=False")
    if frozen := [name for name, each in module.named_parameters() if not each.requires_grad]:
        raise ValueError(
            f"model: expected parameters that are all trained, which need gradients and moments, "
            f"got {len(frozen)} frozen ones, such as {frozen[0]}"
        )
    known = [name for name, _ in module.named_modules() if name]
    if isinstance(units, str) or not set(units) <= set(known):
        raise ValueError(f"units: expected names of modules in the model, got {units!r}")


def _first(output: object) -> Tensor:
    """The tensor that a loss is computed of: the first with a gradient in a module's output."""
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            return leaf
    raise ValueError(
        "model: expected it to return a tensor with a gradient, alone or in a dict or a tuple, "
        f"got {type(output).__name__}"
    )


def _blocks(module: nn.Module) -> list[str]:
    """Names of the modules in the largest ModuleList."""
    lists = {name: m for name, m in module.named_modules() if isinstance(m, nn.ModuleList)}
    if not lists:
        return []
    largest = max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()))
    return [f"{largest}.{number}".lstrip(".") for number in range(len(lists[largest]))]


def _on_meta(module: nn.Module) -> dict[str, Tensor]:
    """The module's parameters and buffers, with a shape and no memory."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: torch.empty_like(each, device="meta", requires_grad=each.requires_grad)
        for name, each in tensors.items()
    }


def _in_order(
    module: nn.Module, names: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Elements of each parameter before the blocks, in the largest of them, and after them."""
    counts = {name: parameter.numel() for name, parameter in module.named_parameters()}
    if not names:
        return (), tuple(counts.values()), ()
    blocks = [[p.numel() for p in module.get_submodule(name).parameters()] for name in names]
    inside = [any(each.startswith(f"{name}.") for name in names) for each in counts]
    first = inside.index(True) if True in inside else len(inside)
    outside = [(place, n) for place, n in enumerate(counts.values()) if not inside[place]]
    before = tuple(n for place, n in outside if place < first)
    after = tuple(n for place, n in outside if place > first)
    return before, tuple(max(blocks, key=sum)), after


def _matrices(module: nn.Module, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Rows and columns of each matrix of the largest block; none if nobody knows the blocks."""
    blocks = [[*module.get_submodule(name).parameters()] for name in names]
    largest = max(blocks, key=lambda block: sum(p.numel() for p in block), default=[])
    return tuple((*p.shape, 1) for p in largest if p.ndim == 2)


class _Masked(TorchFunctionMode):
    """Counts the operations of causal attention that a mask makes superfluous: half of them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is nn.functional.scaled_dot_product_attention and (kwargs or {}).get("is_causal"):
            query, key, value = args[:3]
            rows = query.shape[:-1].numel() * key.shape[-2]
            self.operations += rows * (query.shape[-1] + value.shape[-1])
        return func(*args, **(kwargs or {}))


def _kept(module: nn.Module, given: Inputs) -> float:
    """Memory kept by forward, in elements of the parameters' dtype; by the rules if they apply."""
    tensors = _on_meta(module)

    def forward() -> Any:
        return functional_call(module, tensors, *given)

    try:
        kept = sum(expected(forward).values())
    except NotImplementedError:
        kept = saved(forward, [*tensors.values(), *tree_leaves(given)])
    itemsize = next((parameter.itemsize for parameter in module.parameters()), 4)
    return kept / itemsize
