"""Giving a model on the meta device its first values, a unit at a time.

[Note: a model that fits nowhere] On the meta device tensors have shapes, and no memory. So a model
larger than a rank can be built there, and be sharded by `fully_shard` before it has values. Then
one unit after another gets them: it is initialised whole on every rank, rank 0's values are
broadcast, and each rank keeps its shard of them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from minidist.launch.device import device as own_device
from minidist.parallel.fsdp.param_group import set_tensor
from minidist.parallel.fsdp.shard import Shard
from minidist.parallel.fsdp.unit import Unit
from minidist.parallel.full_model.full_model import bare, comms, whoami


@torch.no_grad()
def materialize(
    module: nn.Module,
    device: torch.device | str | None = None,
    init: Callable[[nn.Module], object] | None = None,
) -> None:
    """Make what is on the meta device, after `fully_shard`; never more than one unit whole.

    Every rank must call it; all get rank 0's values. Build the optimizer afterwards, since
    parameters become other objects. What is not on the meta device stays as it is.

    Args:
        module: with units of `fully_shard`, or bare.
        device: where; the rank's own (`minidist.device()`) if None.
        init: is called with each submodule that has parameters or buffers of its own on meta, and
            has to write these; the innermost first, as constructors run. By default its method
            `reset_parameters`, or else `_reset_parameters`. A tensor that two submodules share is
            initialised by both: the later one counts.

    Raises ValueError if, without `init`, a submodule has neither method.
    """
    device = own_device() if device is None else torch.device(device)
    parts_of: dict[Unit | None, list[nn.Module]] = {}
    for part, unit in _inside_out(bare(module), None, set()):
        if own := _on_meta(part):
            if init is None and _reset_of(part) is None:
                raise ValueError(
                    f"{whoami()}materialize: {type(part).__name__} has {', '.join(own)} of its own "
                    "and no method reset_parameters; write it, or pass init"
                )
            parts_of.setdefault(unit, []).append(part)
    for unit, parts in parts_of.items():
        tensors = _make(parts, device, init or (lambda part: _reset_of(part)()))
        # Of a unit: from rank 0 to its shard group, and on to the replicas.
        between = comms(module) if unit is None else [unit.comm, unit.replicate]
        for tensor in tensors.values():
            for comm in filter(None, between):
                if tensor.numel():
                    comm.broadcast(tensor.detach())
        for group in unit.groups if unit else ():
            if group.local.is_meta:
                group.make_shards([tensors[shard] for shard in group.shards])
        del tensors, tensor  # before the next unit comes


def _inside_out(
    module: nn.Module, unit: Unit | None, seen: set[nn.Module]
) -> Iterator[tuple[nn.Module, Unit | None]]:
    if module not in seen:
        seen.add(module)
        unit = getattr(module, "_unit", unit)
        for child in module.children():
            yield from _inside_out(child, unit, seen)
        yield module, unit


def _on_meta(part: nn.Module) -> dict[str, torch.Tensor]:
    own = {**part._parameters, **part._buffers}
    return {name: each for name, each in own.items() if each is not None and each.is_meta}


def _make(
    parts: Sequence[nn.Module], device: torch.device, init: Callable[[nn.Module], object]
) -> dict[torch.Tensor, torch.Tensor]:
    places = [(part, name, meta) for part in parts for name, meta in _on_meta(part).items()]
    tensors: dict[torch.Tensor, torch.Tensor] = {}
    for part, name, meta in places:
        if meta not in tensors:
            shape = meta.whole_shape if isinstance(meta, Shard) else meta.shape
            tensor = torch.empty(shape, dtype=meta.dtype, device=device)
            is_parameter = isinstance(meta, Parameter)
            tensors[meta] = Parameter(tensor, meta.requires_grad) if is_parameter else tensor
        set_tensor(part, name, tensors[meta])
    with device:
        for part in parts:
            init(part)
    for part, name, meta in places:
        now = getattr(part, name)
        if now is not tensors[meta]:  # `init` has put another one there
            tensors[meta].copy_(now)
            set_tensor(part, name, tensors[meta])
    return tensors


def _reset_of(part: nn.Module) -> Any:
    return getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
