"""How each strategy lays out a module's parameters and cuts them among the ranks, as numbers alone.

Where memory is predicted there are no processes and, for a large model, no memory. But the layouts
are those that the wrappers use: `Flat` of ZeRO's parts, `RowLayout` and `FlatLayout` of FSDP's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from minidist.parallel.sharding.layouts import LAYOUTS, FlatLayout, RowLayout
from minidist.parallel.sharding.partition import MIB, alike, assign_alike

Named = tuple[str, torch.Tensor]
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")


class Cut(NamedTuple):
    """Parameters of one dtype that are laid out together, and a rank's share; all in elements.

    Attributes:
        unit: the name of the wrapped module that they are of, "" for the outermost one.
        dtype: theirs.
        trains: whether they get gradients.
        whole: of all of them.
        padded: the same with what is added so that the ranks have equal slices.
        slice: of this rank, with its padding.
        own: the same without.
        flat: of the memory in which they are whole, while they are whole for a while only.
        gathered: that an all-gather needs beside that, where it cannot write into it.
        largest: of the largest one.
    """

    unit: str
    dtype: torch.dtype
    trains: bool
    whole: int
    padded: int
    slice: int
    own: int
    flat: int
    gathered: int
    largest: int


def cuts(
    module: nn.Module,
    strategy: str,
    ranks: int,
    rank: int,
    *,
    bucket_cap_mb: float = 25,
    layout: str = "dim0",
    units: Iterable[str] = (),
) -> list[Cut]:
    """What is laid out together, in the order in which forward uses it.

    Args:
        module: whole and not wrapped; it may be on the meta device.
        strategy: one of `STRATEGIES`.
        ranks, rank: among how many, and whose share.
        bucket_cap_mb: MiB that close a part ("zero1", "zero2").
        layout: "dim0" or "flat" ("zero3").
        units: names of modules inside it that are wrapped ("zero3").

    Raises:
        ValueError: no module has the name of a unit.
    """
    everything = list(module.named_parameters())
    if strategy == "zero3":
        return [
            _cut(unit, [members[index] for index in kind], LAYOUTS[layout], ranks, rank)
            for unit, members in _by_unit(module, list(units)).items()
            for kind in alike([each for _, each in members])
        ]
    alone = strategy == "ddp"
    cap = float("inf") if alone else bucket_cap_mb * MIB
    parts = assign_alike([each for _, each in everything], cap, cap)
    among = (1, 0) if alone else (ranks, rank)
    return [
        _cut("", [everything[index] for index in part], FlatLayout, *among) for part in parts[::-1]
    ]


def _by_unit(module: nn.Module, units: Sequence[str]) -> dict[str, list[Named]]:
    """The parameters of each unit: of the innermost one that they are in."""
    modules = dict(module.named_modules())
    for unit in units:
        if unit not in modules:
            raise ValueError(f"units: the module has no {unit!r}; it has {', '.join(modules)}")
    found: dict[str, list[Named]] = {unit: [] for unit in ("", *units)}
    for name, parameter in module.named_parameters():
        inside = [unit for unit in found if not unit or name.startswith(f"{unit}.")]
        found[max(inside, key=len)].append((name, parameter))
    return found


def _cut(
    unit: str,
    named: Sequence[Named],
    kind: type[RowLayout] | type[FlatLayout],
    ranks: int,
    rank: int,
) -> Cut:
    layout = kind([each.shape for _, each in named], ranks, rank)
    mine = layout.pieces(torch.empty(layout.shard_numel, device="meta"))
    sizes = [each.numel() for _, each in named]
    return Cut(
        unit=unit,
        dtype=named[0][1].dtype,
        trains=named[0][1].requires_grad,
        whole=sum(sizes),
        padded=layout.padded,
        slice=layout.shard_numel,
        own=sum(view.numel() for view in mine),
        flat=layout.flat_numel,
        gathered=0 if layout.in_place else layout.padded,
        largest=max(sizes),
    )


Size = Callable[[Cut], int]  # bytes of an element


class Flight(NamedTuple):
    """Bytes that are whole for a while: when backward begins, and the most at any time."""

    begin: int
    most: int


def parts_in_flight(laid: Sequence[Cut], sent: Size) -> Flight:
    """Whole gradients on a rank in ZeRO's stage 2.

    One part is filled while the one before it is reduced; and autograd makes one gradient more.
    """
    packed = [cut.padded * sent(cut) for cut in laid if cut.trains]
    alone = max((cut.largest * sent(cut) for cut in laid if cut.trains), default=0)
    most = alone + max(map(sum, zip(packed, [*packed[1:], 0], strict=True)), default=0)
    return Flight(most, most)


def units_in_flight(
    laid: Sequence[Cut], used: Size, sent: Size, reshard: bool, prefetch: bool
) -> Flight:
    """Whole parameters and gradients on a rank under FSDP.

    Backward is where most is whole. The outermost unit is whole all the time, and so may be its
    gradients. One unit inside it computes its gradients; the one that backward comes to next is
    gathered meanwhile, and the gradients of the one that it came from are reduced.

    Args:
        laid: the units' parameters, in the order of forward.
        used, sent: bytes of an element as it is used, and as gradients travel.
        reshard: units are freed between forward and backward.
        prefetch: the next one is gathered in advance.
    """
    root, *inside = (_Unit(laid, name, used, sent) for name in _names(laid))
    if not inside:
        return Flight(root.whole + root.made, root.made + max(root.whole, root.table))
    flights = []
    for place, unit in enumerate(inside):
        stay = 0 if reshard else sum(each.whole for each in inside[:place])
        fetched = inside[place - 1].fetched if place and prefetch and reshard else 0
        table = inside[place + 1].table if place + 1 < len(inside) else 0
        arriving = unit.whole + (unit.extra if reshard else 0) + stay + table
        computing = unit.whole + unit.made + fetched + stay + table
        flights.append(root.whole + root.made + max(arriving, computing))
    return Flight(flights[-1], max(flights))


def _names(laid: Sequence[Cut]) -> list[str]:
    """Of the units: the outermost first, then in the order of forward."""
    return list(dict.fromkeys(["", *(cut.unit for cut in laid)]))


class _Unit:
    """Bytes of one unit: its parameters whole, what it takes to fetch them, its gradients."""

    def __init__(self, laid: Sequence[Cut], name: str, used: Size, sent: Size) -> None:
        own = [cut for cut in laid if cut.unit == name]
        trained = [cut for cut in own if cut.trains]
        self.whole = sum(cut.flat * used(cut) for cut in own)
        self.extra = sum(cut.gathered * used(cut) for cut in own)
        self.fetched = sum((cut.gathered or cut.flat) * used(cut) for cut in own)
        self.made = sum(cut.whole * used(cut) for cut in trained)
        self.table = sum(cut.padded * sent(cut) for cut in trained)
