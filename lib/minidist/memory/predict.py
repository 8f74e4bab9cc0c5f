"""What a rank should take to train a module, under each strategy, in bytes.

There are no processes where memory is predicted and, for a large model, no memory. But the layouts
are the very ones that the wrappers use: the flat one of ZeRO's buckets, the rows of FSDP's units.
What is there from step to step is exact, padding included; what is unsharded for a part of the step
is modelled by `_buckets_in_flight` and `_units_in_flight`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from minidist.memory.state import DtypePolicy, StateBytes, moments_of
from minidist.parallel.sharding.layouts import Flat, RowLayout
from minidist.parallel.sharding.partition import MIB, alike, assign_alike
from minidist.schedule.checks import whole_number

STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
LAYOUTS = "rows", "flat"


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
    bucket_cap_mb: float = 25,
    layout: str = "rows",
    units: Iterable[str] = (),
) -> RankBytes:
    """Predict what a rank takes to train a module; its state to the byte.

    Options of the wrappers, such as `gradient_as_bucket_view`, mean what they mean there.
    `layout="flat"` is for the units of `from_scratch.fsdp`.

    Args:
        module: the bare one, not wrapped; it may be on the meta device.
        strategy: "ddp", "zero1" (on gradients that DDP has averaged), "zero2" or "zero3" (FSDP).
        rank: of which; padding and uneven rows make ranks differ a little.
        policy: of dtypes; None: every part has its parameter's own. With "zero3" and master weights
            it is as in PyTorch's FSDP2: the shards are those, and are cast when they are gathered.
        optimizer: as in `minidist.memory.state.state`.
        activations: bytes of them; `minidist.memory.activations.expected` predicts them.
        units: names of the modules inside that are wrapped ("zero3").
    """
    whole_number("activations", activations, 0)
    last = whole_number("ranks", ranks, 1) - 1
    if strategy not in STRATEGIES or not 0 <= whole_number("rank", rank) <= last:
        raise ValueError(
            f"predict: expected one of {', '.join(STRATEGIES)} and a rank from 0 to {last}, "
            f"got {strategy!r} and {rank}"
        )
    if strategy == "zero3":
        groups = _unit_groups(module, ranks, rank, layout, units)
    else:
        groups = _bucket_groups(module, strategy, ranks, rank, bucket_cap_mb)
    trained = [group for group in groups if group.trains]
    size = partial(_itemsize, policy, strategy == "zero3")
    used, sent = (partial(_itemsize, policy, False, part) for part in ("weights", "gradients"))
    replicated = sum(group.numel * size("gradients", group) for group in trained)
    sharded = sum(group.shard * size("gradients", group) for group in trained)
    with_ddp, in_flight = strategy in ("ddp", "zero1"), _InFlight(0, 0)
    if strategy == "zero2":
        in_flight = _buckets_in_flight(trained, sent)
    if strategy == "zero3":
        in_flight = _units_in_flight(groups, used, sent, reshard_after_forward)
    return RankBytes(
        parameters=sum(
            (group.shard if strategy == "zero3" else group.padded) * size("weights", group)
            for group in groups
        ),
        gradients=replicated if with_ddp else sharded,
        master=sum(group.own * size("master", group) for group in trained),
        moments=sum(group.own * size("moments", group) for group in trained)
        * moments_of(optimizer),
        unsharded=in_flight.most,
        buckets=replicated if with_ddp and not gradient_as_bucket_view else 0,
        activations=activations,
        at_begin=replicated if with_ddp and gradient_as_bucket_view else in_flight.begin,
    )


# ---- how parameters are laid out and sharded ----


class _Group:
    """Parameters of one dtype that are laid out together, and a rank's shard; all in elements."""

    def __init__(
        self, unit: str, parameters: Sequence[nn.Parameter], kind: str, ranks: int, rank: int
    ) -> None:
        shapes, flat = [each.shape for each in parameters], kind == "flat"
        layout = Flat(shapes, ranks, rank) if flat else RowLayout(shapes, ranks, rank)
        sizes = [each.numel() for each in parameters]
        self.unit = unit  # the name of the wrapped module, "" for the outermost one
        self.dtype, self.trains = parameters[0].dtype, parameters[0].requires_grad
        self.numel, self.largest = sum(sizes), max(sizes)
        self.padded, self.shard = layout.padded, layout.shard_numel
        own = layout.pieces(torch.empty(self.shard, device="meta"))
        self.own = sum(view.numel() for view in own)  # of the shard, without padding
        self.unsharded = self.padded if flat else self.numel
        # What an all-gather needs beside that: it can write into flat parameters.
        self.gathered = 0 if flat else self.padded


def _bucket_groups(
    module: nn.Module, strategy: str, ranks: int, rank: int, bucket_cap_mb: float
) -> list[_Group]:
    """The layout of ZeRO's buckets, in the order in which forward uses them.

    Under DDP nothing is sharded: one bucket for each kind of parameter, on one rank.
    """
    if not bucket_cap_mb > 0:
        raise ValueError(f"bucket_cap_mb: expected a number of MiB above 0, got {bucket_cap_mb!r}")
    cap = bucket_cap_mb * MIB
    if strategy == "ddp":
        cap, ranks, rank = float("inf"), 1, 0
    parameters = list(module.parameters())
    return [
        _Group("", [parameters[index] for index in bucket], "flat", ranks, rank)
        for bucket in reversed(assign_alike(parameters, cap, cap))
    ]


def _unit_groups(
    module: nn.Module, ranks: int, rank: int, layout: str, units: Iterable[str]
) -> list[_Group]:
    """The layout of FSDP's units, the outermost one first."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
    members: dict[str, list[nn.Parameter]] = {unit: [] for unit in ("", *units)}
    for unit in members:
        module.get_submodule(unit)  # it is there
    for name, parameter in module.named_parameters():
        around = [unit for unit in members if not unit or name.startswith(f"{unit}.")]
        members[max(around, key=len)].append(parameter)
    return [
        _Group(unit, [own[index] for index in kind], layout, ranks, rank)
        for unit, own in members.items()
        for kind in alike(own)
    ]


def _itemsize(
    policy: DtypePolicy | None, shards_are_masters: bool, part: str, group: _Group
) -> int:
    """Bytes of an element of a part: see `predict`."""
    if policy is None:
        return group.dtype.itemsize if part != "master" else 0
    if shards_are_masters and policy.master and part != "moments":
        return policy.master.itemsize if part != "master" else 0
    dtype: torch.dtype | None = getattr(policy, part)
    return dtype.itemsize if dtype else 0


# ---- what is unsharded for part of a step ----

_Size = Callable[[_Group], int]  # bytes of an element


class _InFlight(NamedTuple):
    """Unsharded bytes: when backward begins, and the most at any time."""

    begin: int
    most: int


def _buckets_in_flight(trained: Sequence[_Group], sent: _Size) -> _InFlight:
    """Unsharded gradients on a rank in ZeRO's stage 2.

    One bucket is filled while the one before it is reduced; and autograd makes one gradient more.
    """
    packed = [group.padded * sent(group) for group in trained]
    alone = max((group.largest * sent(group) for group in trained), default=0)
    most = alone + max(map(sum, zip(packed, [*packed[1:], 0], strict=True)), default=0)
    return _InFlight(most, most)


def _units_in_flight(
    groups: Sequence[_Group], used: _Size, sent: _Size, reshard: bool
) -> _InFlight:
    """Unsharded parameters and gradients on a rank under FSDP.

    Backward is where most is unsharded. The outermost unit is so all the time, and so may be its
    gradients. One unit inside it computes its gradients; the one that backward comes to next is
    gathered meanwhile, and the gradients of the one that it came from are reduced.

    Args:
        groups: the units' parameters, in the order of forward.
        used, sent: bytes of an element as it is used, and as gradients travel.
    """
    names = dict.fromkeys(["", *(group.unit for group in groups)])
    root, *inside = (_UnitBytes(groups, name, used, sent) for name in names)
    if not inside:
        return _InFlight(
            root.parameters + root.gradients, root.gradients + max(root.parameters, root.reducing)
        )
    most = []
    for place, unit in enumerate(inside):
        kept = 0 if reshard else sum(each.parameters for each in inside[:place])
        fetched = inside[place - 1].fetched if place and reshard else 0
        reducing = inside[place + 1].reducing if place + 1 < len(inside) else 0
        arriving = unit.parameters + (unit.gathered if reshard else 0) + kept + reducing
        computing = unit.parameters + unit.gradients + fetched + kept + reducing
        most.append(root.parameters + root.gradients + max(arriving, computing))
    return _InFlight(most[-1], max(most))


class _UnitBytes:
    """Bytes of one unit: unsharded parameters, what it takes to fetch them, gradients."""

    def __init__(self, groups: Sequence[_Group], name: str, used: _Size, sent: _Size) -> None:
        own = [group for group in groups if group.unit == name]
        trained = [group for group in own if group.trains]
        self.parameters = sum(group.unsharded * used(group) for group in own)
        self.gathered = sum(group.gathered * used(group) for group in own)
        self.fetched = sum((group.gathered or group.unsharded) * used(group) for group in own)
        self.gradients = sum(group.numel * used(group) for group in trained)
        self.reducing = sum(group.padded * sent(group) for group in trained)
