"""Giving a model on the meta device its first values, a unit at a time.

[Note: a model that fits nowhere] On the meta device tensors have shapes, and no memory. So a model
larger than a rank can be built there, and cut by `fully_shard` while it is nothing yet. Then one
unit after another comes into being: whole on every rank, initialised, rank 0's values given to all,
cut; and the whole is freed before the next one comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import Parameter

from minidist.comm.comm import Comm
from minidist.launch.launch import device as own_device
from minidist.parallel.fsdp.unit import Unit
from minidist.parallel.full_model.shards import comms, whoami

Init = Callable[[nn.Module], object]
METHODS = ("reset_parameters", "_reset_parameters")  # as torch.nn's modules have them


@torch.no_grad()
def materialize(
    module: nn.Module,
    device: torch.device | str | None = None,
    init: Callable[[nn.Module], object] | None = None,
) -> None:
    """Make what is on the meta device, after `fully_shard`; never more than one unit whole.

    Every rank must call it; all get rank 0's values. The optimizer is built afterwards, since
    parameters become other objects. What is not on the meta device stays as it is. Parameters
    outside units are made whole, as are all of a bare module.

    Args:
        module: with units of `fully_shard`, or bare.
        device: where; the rank's own (`minidist.device()`) if None.
        init: is called with each submodule that has parameters or buffers of its own on meta, and
            has to write or replace these; the innermost first, as constructors run. By default
            its method `reset_parameters`, or else `_reset_parameters`. A tensor that two submodules
            share is initialised by both: the later one counts.

    Raises:
        ValueError: without `init`: a submodule has neither method, or its method leaves a parameter
            or buffer alone; or any `init` makes one of another shape or dtype. It names them.
    """
    device = own_device() if device is None else torch.device(device)
    names = {part: name for name, part in module.named_modules()}
    parts_of: dict[Unit | None, list[nn.Module]] = {}
    for part, unit in _inside_out(module, None, set()):
        if any(place.tensor.is_meta for place in _places(part)):
            parts_of.setdefault(unit, []).append(part)
    if init is None:
        _check_methods([part for parts in parts_of.values() for part in parts], names)
    everybody = comms(module)
    for unit, parts in parts_of.items():
        made = _make(unit, parts, device, init, names)
        for tensor in made.values():
            for comm in everybody if unit is None else _between(unit):
                if tensor.numel():
                    comm.broadcast(tensor.detach())
        for block in unit.groups if unit is not None else ():
            if block.local.is_meta:
                block.copy_from([made[shard].detach() for shard in block.shards])
        del made, tensor  # before the next unit comes


class _Place(NamedTuple):
    """Where a submodule has a parameter or buffer of its own."""

    part: nn.Module
    table: dict[str, torch.Tensor | None]
    name: str
    tensor: torch.Tensor

    def put(self, tensor: torch.Tensor) -> None:
        """Put another tensor there."""
        if type(self.part).__setattr__ is nn.Module.__setattr__:
            self.table[self.name] = tensor
        else:  # an LSTM, for one, keeps a list of them
            setattr(self.part, self.name, tensor)


def _places(part: nn.Module) -> list[_Place]:
    tables: Sequence[dict[str, torch.Tensor | None]] = (part._parameters, part._buffers)  # type: ignore[assignment]
    return [
        _Place(part, table, name, tensor)
        for table in tables
        for name, tensor in table.items()
        if tensor is not None
    ]


def _inside_out(
    module: nn.Module, unit: Unit | None, seen: set[nn.Module]
) -> Iterator[tuple[nn.Module, Unit | None]]:
    """Every submodule after those in it, each once, and the unit that it belongs to."""
    if module not in seen:
        seen.add(module)
        unit = getattr(module, "_unit", unit)
        for child in module.children():
            yield from _inside_out(child, unit, seen)
        yield module, unit


def _between(unit: Unit) -> list[Comm]:
    """Rank 0's values go to its shard group, and from there to the others."""
    return [unit.comm] if unit.replicate is None else [unit.comm, unit.replicate]


def _make(
    unit: Unit | None,
    parts: Sequence[nn.Module],
    device: torch.device,
    init: Init | None,
    names: dict[nn.Module, str],
) -> dict[torch.Tensor, torch.Tensor]:
    """Whole, initialised tensors in the places of those on meta, by these."""
    places = [place for part in parts for place in _places(part) if place.tensor.is_meta]
    shapes: dict[torch.Tensor, torch.Size] = {}
    for block in unit.groups if unit is not None else ():
        shapes |= zip(block.shards, block.layout.shapes, strict=True)
    made = {
        meta: _blank(meta, shapes.get(meta, meta.shape), device)
        for meta in dict.fromkeys(place.tensor for place in places)
    }
    for place in places:
        place.put(made[place.tensor])
    try:
        with device:
            for part in parts:
                (init or _reset)(part)
        for place in places:
            _take_over(place, made[place.tensor], names[place.part], init is None)
    except BaseException:
        for place in places:
            place.put(place.tensor)
        raise
    return made


def _reset(part: nn.Module) -> None:
    next(getattr(part, name) for name in METHODS if hasattr(part, name))()


def _check_methods(parts: Iterable[nn.Module], names: dict[nn.Module, str]) -> None:
    without = [
        f"{names[part] or 'the root'} ({type(part).__name__}: "
        f"{', '.join(place.name for place in _places(part) if place.tensor.is_meta)})"
        for part in parts
        if not any(hasattr(part, name) for name in METHODS)
    ]
    if without:
        raise ValueError(
            f"{whoami()}materialize: expected a method reset_parameters of each submodule with "
            f"parameters or buffers of its own, got none of {'; '.join(without)}; write it, or "
            "pass init"
        )


# ---- a tensor that nobody has written yet can be told ----


def _blank(meta: torch.Tensor, shape: torch.Size, device: torch.device) -> torch.Tensor:
    tensor = torch.full(shape, _mark(meta.dtype) or 0, dtype=meta.dtype, device=device)
    return Parameter(tensor, meta.requires_grad) if isinstance(meta, Parameter) else tensor


def _mark(dtype: torch.dtype) -> float | None:
    """What no initialisation writes everywhere; None where every value may be meant."""
    if (dtype.is_floating_point or dtype.is_complex) and dtype.itemsize > 1:
        return float("nan")
    return torch.iinfo(dtype).min if dtype.is_signed and not dtype.is_floating_point else None


def _take_over(place: _Place, made: torch.Tensor, where: str, check: bool) -> None:
    """What has been written, also if it was into another tensor in the same place."""
    name = f"{where}.{place.name}".removeprefix(".")
    now = place.table.get(place.name)
    if now is not made:
        if now is None or (now.shape, now.dtype) != (made.shape, made.dtype):
            got = "nothing" if now is None else f"{tuple(now.shape)} {now.dtype}"
            raise ValueError(
                f"{whoami()}materialize: {name}: expected {tuple(made.shape)} {made.dtype}, "
                f"got {got} from its initialisation"
            )
        made.copy_(now)
        place.put(made)
    mark = _mark(made.dtype)
    if check and mark is not None and made.numel():
        alone = made.isnan() if mark != mark else made == mark
        if alone.all():
            raise ValueError(
                f"{whoami()}materialize: {name}: expected values from the method reset_parameters "
                f"of {type(place.part).__name__}, which leaves it alone; write it there, or pass "
                "init"
            )
