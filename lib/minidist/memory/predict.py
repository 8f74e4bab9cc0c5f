"""What a rank should take to train a module, under each strategy, in bytes.

There are no processes where memory is predicted and, for a large model, no memory. But the layouts
are the very ones that the wrappers use: the flat one of ZeRO's buckets, and both of FSDP's units.
What is there from step to step is exact, padding included; what is unsharded for a part of the step
is modelled by `buckets_in_flight` and `units_in_flight`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from minidist.memory.state import DtypePolicy, StateBytes, moments_of
from minidist.parallel.sharding.layouts import LAYOUTS
from minidist.parallel.sharding.partition import MIB, alike, assign_alike
from minidist.schedule.checks import whole_number

Named = tuple[str, torch.Tensor]
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")


@dataclass(frozen=True)
class RankBytes:
    """Bytes that one rank takes.

    Attributes:
        parameters, gradients, master, moments: the state, padding included.
        unsharded: the most that is unsharded for part of a step: of units, or of buckets in flight.
        buckets: in which gradients travel, where they are kept beside the gradients.
        activations: as they were passed.
        at_begin: what of `unsharded` is there when backward begins, with all activations; and of
            gradients, if they are views of buckets.
    """

    parameters: int
    gradients: int
    master: int
    moments: int
    unsharded: int = 0
    buckets: int = 0
    activations: int = 0
    at_begin: int = 0

    @property
    def state(self) -> StateBytes:
        """What lives on from step to step, as `held` measures it."""
        return StateBytes(self.parameters, self.gradients, self.master, self.moments)

    @property
    def total(self) -> int:
        """Bytes of all parts, which are never there all at once."""
        return sum(self.parts.values())

    @property
    def peak(self) -> int:
        """The most at any time, if a step begins by freeing the gradients of the last one.

        Either as backward begins, with all activations and no gradients yet, or as it ends. Left
        out is what an operation takes while it runs, also one of the optimizer.
        """
        always = self.parameters + self.master + self.moments + self.buckets
        return always + max(self.at_begin + self.activations, self.unsharded + self.gradients)

    @property
    def parts(self) -> dict[str, int]:
        """Name → bytes, for tables and pictures."""
        names = [field.name for field in fields(self) if field.name != "at_begin"]
        return {name: getattr(self, name) for name in names}


def predict(
    module: nn.Module,
    ranks: int,
    strategy: str,
    *,
    rank: int = 0,
    policy: DtypePolicy | None = None,
    optimizer: str = "adam",
    activations: int = 0,
    gradient_as_bucket_view: bool = False,
    reshard_after_forward: bool = True,
    prefetch: bool = True,
    bucket_cap_mb: float = 25,
    layout: str = "dim0",
    units: Iterable[str] = (),
) -> RankBytes:
    """Predict what a rank takes to train a module; its state to the byte.

    Args:
        module: the bare one, not wrapped; it may be on the meta device.
        ranks: how many train it together.
        strategy: "ddp", "zero1" (on gradients that DDP has averaged), "zero2" or "zero3".
        rank: of which; padding and uneven rows make ranks differ a little.
        policy: of dtypes; None: every part has its parameter's own. With "zero3" and master weights
            it is as in PyTorch's FSDP2: the shards are those, and are cast when they are gathered.
        optimizer: as in `minidist.memory.state.state`.
        activations: bytes of them; `minidist.memory.activations.expected` predicts them.
        gradient_as_bucket_view: as in `DistributedDataParallel`.
        reshard_after_forward, prefetch: as in `fully_shard`.
        bucket_cap_mb: MiB that close a bucket ("zero1", "zero2").
        layout: "dim0" or "flat" ("zero3").
        units: names of the modules inside that are wrapped ("zero3").
    """
    moments = moments_of("predict", optimizer)
    _check_numbers(strategy, ranks, rank, activations, bucket_cap_mb)
    if strategy == "zero3":
        groups = unit_layouts(module, ranks, rank, layout=layout, units=units)
    else:
        groups = bucket_layouts(module, strategy, ranks, rank, bucket_cap_mb=bucket_cap_mb)
    trained = [group for group in groups if group.trains]
    size = partial(_itemsize, policy, strategy == "zero3")
    used, sent = (partial(_itemsize, policy, False, part) for part in ("weights", "gradients"))
    replicated = sum(group.numel * size("gradients", group) for group in trained)
    sharded = sum(group.shard * size("gradients", group) for group in trained)
    with_ddp, in_flight = strategy in ("ddp", "zero1"), InFlight(0, 0)
    if strategy == "zero2":
        in_flight = buckets_in_flight(groups, sent)
    if strategy == "zero3":
        in_flight = units_in_flight(groups, used, sent, reshard_after_forward, prefetch)
    return RankBytes(
        parameters=sum(
            (group.shard if strategy == "zero3" else group.padded) * size("weights", group)
            for group in groups
        ),
        gradients=replicated if with_ddp else sharded,
        master=sum(group.own * size("master", group) for group in trained),
        moments=sum(group.own * size("moments", group) for group in trained) * moments,
        unsharded=in_flight.most,
        buckets=replicated if with_ddp and not gradient_as_bucket_view else 0,
        activations=activations,
        at_begin=replicated if with_ddp and gradient_as_bucket_view else in_flight.begin,
    )


def _check_numbers(
    strategy: str, ranks: int, rank: int, activations: int, bucket_cap_mb: float
) -> None:
    whole_number("activations", activations, 0)
    last = whole_number("ranks", ranks, 1) - 1
    if strategy not in STRATEGIES or not 0 <= whole_number("rank", rank) <= last:
        raise ValueError(
            f"predict: expected one of {', '.join(STRATEGIES)} and a rank from 0 to {last}, "
            f"got {strategy!r} and {rank}"
        )
    if not bucket_cap_mb > 0:
        raise ValueError(f"bucket_cap_mb: expected a number of MiB above 0, got {bucket_cap_mb!r}")


# ---- how parameters are laid out and sharded ----


class GroupLayout(NamedTuple):
    """Parameters of one dtype that are laid out together, and a rank's shard; all in elements."""

    unit: str  # the name of the wrapped module that they belong to, "" for the outermost one
    dtype: torch.dtype
    trains: bool
    numel: int
    padded: int  # so that the ranks have equal shards
    shard: int  # of this rank, with its padding
    own: int  # the same without
    unsharded: int  # the memory in which they lie while they are unsharded
    gathered: int  # what an all-gather needs beside that, where it cannot write into it
    largest: int  # of the parameters


def bucket_layouts(
    module: nn.Module, strategy: str, ranks: int, rank: int, *, bucket_cap_mb: float = 25
) -> list[GroupLayout]:
    """The layout of ZeRO's buckets, in the order in which forward uses them.

    Under DDP nothing is sharded: one bucket for each kind of parameter, on one rank.
    """
    named = list(module.named_parameters())
    alone = strategy == "ddp"
    cap = float("inf") if alone else bucket_cap_mb * MIB
    buckets = assign_alike([each for _, each in named], cap, cap)
    among = (1, 0) if alone else (ranks, rank)
    return [
        _group_layout("", [named[index] for index in bucket], "flat", *among)
        for bucket in reversed(buckets)
    ]


def unit_layouts(
    module: nn.Module, ranks: int, rank: int, *, layout: str = "dim0", units: Iterable[str] = ()
) -> list[GroupLayout]:
    """The layout of FSDP's units, the outermost one first."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
    return [
        _group_layout(unit, [members[index] for index in kind], layout, ranks, rank)
        for unit, members in _by_unit(module, list(units)).items()
        for kind in alike([each for _, each in members])
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


def _group_layout(
    unit: str, named: Sequence[Named], kind: str, ranks: int, rank: int
) -> GroupLayout:
    layout = LAYOUTS[kind]([each.shape for _, each in named], ranks, rank)
    own = layout.pieces(torch.empty(layout.shard_numel, device="meta"))
    sizes = [each.numel() for _, each in named]
    return GroupLayout(
        unit=unit,
        dtype=named[0][1].dtype,
        trains=named[0][1].requires_grad,
        numel=sum(sizes),
        padded=layout.padded,
        shard=layout.shard_numel,
        own=sum(view.numel() for view in own),
        unsharded=layout.flat_numel,
        gathered=0 if layout.in_place else layout.padded,
        largest=max(sizes),
    )


def _itemsize(
    policy: DtypePolicy | None, shards_are_masters: bool, part: str, group: GroupLayout
) -> int:
    """Bytes of an element of a part: see `predict`."""
    if policy is None:
        return group.dtype.itemsize if part != "master" else 0
    if shards_are_masters and policy.master and part != "moments":
        return policy.master.itemsize if part != "master" else 0
    dtype: torch.dtype | None = getattr(policy, part)
    return dtype.itemsize if dtype else 0


# ---- what is unsharded for part of a step ----

Size = Callable[[GroupLayout], int]  # bytes of an element


class InFlight(NamedTuple):
    """Unsharded bytes: when backward begins, and the most at any time."""

    begin: int
    most: int


def buckets_in_flight(groups: Sequence[GroupLayout], sent: Size) -> InFlight:
    """Unsharded gradients on a rank in ZeRO's stage 2.

    One bucket is filled while the one before it is reduced; and autograd makes one gradient more.
    """
    packed = [group.padded * sent(group) for group in groups if group.trains]
    alone = max((group.largest * sent(group) for group in groups if group.trains), default=0)
    most = alone + max(map(sum, zip(packed, [*packed[1:], 0], strict=True)), default=0)
    return InFlight(most, most)


def units_in_flight(
    groups: Sequence[GroupLayout], used: Size, sent: Size, reshard: bool, prefetch: bool
) -> InFlight:
    """Unsharded parameters and gradients on a rank under FSDP.

    Backward is where most is unsharded. The outermost unit is so all the time, and so may be its
    gradients. One unit inside it computes its gradients; the one that backward comes to next is
    gathered meanwhile, and the gradients of the one that it came from are reduced.

    Args:
        groups: the units' parameters, in the order of forward.
        used, sent: bytes of an element as it is used, and as gradients travel.
        reshard, prefetch: as in `fully_shard`.
    """
    names = dict.fromkeys(["", *(group.unit for group in groups)])
    root, *inside = (_UnitBytes(groups, name, used, sent) for name in names)
    if not inside:
        return InFlight(
            root.parameters + root.gradients, root.gradients + max(root.parameters, root.reducing)
        )
    most = []
    for place, unit in enumerate(inside):
        kept = 0 if reshard else sum(each.parameters for each in inside[:place])
        fetched = inside[place - 1].fetched if place and prefetch and reshard else 0
        reducing = inside[place + 1].reducing if place + 1 < len(inside) else 0
        arriving = unit.parameters + (unit.gathered if reshard else 0) + kept + reducing
        computing = unit.parameters + unit.gradients + fetched + kept + reducing
        most.append(root.parameters + root.gradients + max(arriving, computing))
    return InFlight(most[-1], max(most))


class _UnitBytes:
    """Bytes of one unit: unsharded parameters, what it takes to fetch them, gradients."""

    def __init__(self, groups: Sequence[GroupLayout], name: str, used: Size, sent: Size) -> None:
        own = [group for group in groups if group.unit == name]
        trained = [group for group in own if group.trains]
        self.parameters = sum(group.unsharded * used(group) for group in own)
        self.gathered = sum(group.gathered * used(group) for group in own)
        self.fetched = sum((group.gathered or group.unsharded) * used(group) for group in own)
        self.gradients = sum(group.numel * used(group) for group in trained)
        self.reducing = sum(group.padded * sent(group) for group in trained)
