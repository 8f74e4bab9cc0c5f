"""Memory that a rank should take to train a module, under each strategy, in bytes.

There are no processes where memory is predicted and, for a large model, no memory. But the layouts
are the very ones that the wrappers use: the flat one of ZeRO's buckets, the rows of FSDP's units.
What is there from step to step is exact, padding included; what is unsharded for a part of the step
is modelled by `_buckets_in_flight` and `_units_in_flight`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from minidist.formulas.inputs import Each
from minidist.memory.state import DtypePolicy, StateBytes, Strategy, bytes_each
from minidist.parallel.sharding.layouts import Flat, RowLayout
from minidist.parallel.sharding.partition import MIB, alike, assign_alike
from minidist.schedule.checks import whole_number

STRATEGIES = (Strategy.DDP, Strategy.ZERO1, Strategy.ZERO2, Strategy.FSDP)


class RankBytes(NamedTuple):
    """Bytes that one rank takes; of the state with padding, of activations as they were passed.

    `at_begin` is what of `unsharded` is there when backward begins, with all activations; and of
    gradients, if they are views of buckets.
    """

    parameters: int
    gradients: int
    master: int
    moments: int
    unsharded: int = 0  #: for part of a step, the most: of units, or of buckets in flight
    buckets: int = 0  #: in which gradients travel, where they are kept beside the gradients
    activations: int = 0
    at_begin: int = 0

    @property
    def state(self) -> StateBytes:
        return StateBytes(self.parameters, self.gradients, self.master, self.moments)

    @property
    def total(self) -> int:
        """The bytes of all parts, which are never held all at once."""
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
        return {name: n for name, n in self._asdict().items() if name != "at_begin"}


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
    units: Iterable[str] = (),
) -> RankBytes:
    """Predict what a rank takes to train a module; its state to the byte.

    Options of the wrappers, such as `gradient_as_bucket_view`, mean what they mean there.

    Args:
        module: the bare one, not wrapped; it may be on the meta device.
        strategy: "ddp", "zero1" (on gradients that DDP has averaged), "zero2" or "fsdp".
        rank: padding and uneven rows make ranks differ a little.
        policy: of dtypes; None: every part has its parameter's own. With "fsdp" and master weights
            it is as in PyTorch's FSDP2: the shards are those, and are cast when they are gathered.
        optimizer: as in `minidist.memory.state.state`.
        activations: bytes of them; `minidist.memory.activations.expected` predicts them.
        units: names of the modules inside that are wrapped ("fsdp").
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"predict: module: expected a torch.nn.Module, got {module!r}")
    whole_number("activations", activations, 0)
    last = whole_number("ranks", ranks, 1) - 1
    if strategy not in STRATEGIES or not 0 <= whole_number("rank", rank) <= last:
        raise ValueError(
            f"predict: expected one of {', '.join(STRATEGIES)} and a rank from 0 to {last}, "
            f"got {strategy!r} and {rank}"
        )
    with_ddp, fsdp = strategy in STRATEGIES[:2], strategy == Strategy.FSDP
    if fsdp:
        groups = _unit_groups(module, ranks, rank, units)
    else:
        groups = _bucket_groups(module, strategy, ranks, rank, bucket_cap_mb)
    for group in groups:
        group.weigh(policy, optimizer, fsdp)
    trained = [group for group in groups if group.trains]
    replicated = sum(group.numel * group.each.gradients for group in trained)
    sharded = sum(group.shard * group.each.gradients for group in trained)
    at_begin, unsharded = replicated if with_ddp and gradient_as_bucket_view else 0, 0
    if strategy == Strategy.ZERO2:
        at_begin = unsharded = _buckets_in_flight(trained)
    elif fsdp:
        at_begin, unsharded = _units_in_flight(groups, reshard_after_forward)
    return RankBytes(
        parameters=sum((g.shard if fsdp else g.padded) * g.each.weights for g in groups),
        gradients=replicated if with_ddp else sharded,
        master=sum(group.own * group.each.master for group in trained),
        moments=sum(group.own * int(group.each.moments) for group in trained),
        unsharded=unsharded,
        buckets=replicated if with_ddp and not gradient_as_bucket_view else 0,
        activations=activations,
        at_begin=at_begin,
    )


class _Group:
    """Parameters that travel together: how many elements, and the bytes of one."""

    each: Each
    sent: int  # bytes of a gradient on its way

    def __init__(
        self,
        unit: str,
        own: Sequence[nn.Parameter],
        layout: type[Flat | RowLayout],
        ranks: int,
        rank: int,
    ) -> None:
        self.unit = unit  # the name of the wrapped module, "" for the outermost one
        self.dtype, self.trains = own[0].dtype, own[0].requires_grad
        self.numel, self.largest = sum(p.numel() for p in own), max(p.numel() for p in own)
        laid = layout([each.shape for each in own], ranks, rank)
        self.padded, self.shard = laid.padded, laid.shard_numel
        pieces = laid.pieces(torch.empty(self.shard, device="meta"))
        self.own = sum(piece.numel() for piece in pieces)  # elements of the shard without padding

    def weigh(self, policy: DtypePolicy | None, optimizer: str, fsdp: bool) -> None:
        if policy is None:
            policy = DtypePolicy("", self.dtype, self.dtype, None, self.dtype)
        self.each = bytes_each(policy, optimizer)
        self.sent, master = self.each.gradients, self.each.master
        if fsdp and master:
            self.each = self.each._replace(weights=master, gradients=master, master=0)


def _bucket_groups(
    module: nn.Module, strategy: str, ranks: int, rank: int, bucket_cap_mb: float
) -> list[_Group]:
    if not (isinstance(bucket_cap_mb, int | float) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb: expected a number of MiB above 0, got {bucket_cap_mb!r}")
    cap = bucket_cap_mb * MIB
    if strategy == "ddp":
        cap, ranks, rank = float("inf"), 1, 0
    parameters = list(module.parameters())
    return [
        _Group("", [parameters[index] for index in bucket], Flat, ranks, rank)
        for bucket in reversed(assign_alike(parameters, cap, cap))
    ]


def _unit_groups(module: nn.Module, ranks: int, rank: int, units: Iterable[str]) -> list[_Group]:
    if isinstance(units, str) or not isinstance(units, Iterable):
        raise TypeError(f"units: expected names of modules inside, got {units!r}")
    members: dict[str, list[nn.Parameter]] = {unit: [] for unit in ("", *units)}
    for unit in members:
        module.get_submodule(unit)  # it is there
    for name, parameter in module.named_parameters():
        around = [unit for unit in members if not unit or name.startswith(f"{unit}.")]
        members[max(around, key=len)].append(parameter)
    return [
        _Group(unit, [own[index] for index in kind], RowLayout, ranks, rank)
        for unit, own in members.items()
        for kind in alike(own)
    ]


def _buckets_in_flight(trained: Sequence[_Group]) -> int:
    """Bytes of unsharded gradients on a rank in ZeRO's stage 2, all through backward.

    One bucket is filled while the one before it is reduced; and autograd makes one gradient more.
    """
    packed = [group.padded * group.sent for group in trained]
    alone = max((group.largest * group.sent for group in trained), default=0)
    return alone + max(map(sum, zip(packed, [*packed[1:], 0], strict=True)), default=0)


def _units_in_flight(groups: Sequence[_Group], reshard: bool) -> tuple[int, int]:
    """Bytes of unsharded parameters and gradients under FSDP: as backward begins, and the most.

    Backward is where most is unsharded. The outermost unit is so all the time, and so may be its
    gradients. One unit inside it computes its gradients; the one that backward comes to next is
    gathered meanwhile, and the gradients of the one that it came from are reduced.
    `groups` are the units' parameters, in the order of forward.
    """
    names = dict.fromkeys(["", *(group.unit for group in groups)])
    root, *inside = (_UnitBytes([g for g in groups if g.unit == name]) for name in names)
    if not inside:
        most = root.gradients + max(root.parameters, root.reducing)
        return root.parameters + root.gradients, most
    most_in = []
    for place, unit in enumerate(inside):
        kept = 0 if reshard else sum(each.parameters for each in inside[:place])
        fetched = inside[place - 1].gathered if place and reshard else 0
        reducing = inside[place + 1].reducing if place + 1 < len(inside) else 0
        arriving = unit.parameters + (unit.gathered if reshard else 0) + kept + reducing
        computing = unit.parameters + unit.gradients + fetched + kept + reducing
        most_in.append(root.parameters + root.gradients + max(arriving, computing))
    return most_in[-1], max(most_in)


class _UnitBytes:
    """Bytes of a unit: as it is used, in the table it is gathered into, and of its gradients."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        trained = [group for group in groups if group.trains]
        self.parameters = sum(group.numel * group.each.compute for group in groups)
        self.gathered = sum(group.padded * group.each.compute for group in groups)
        self.gradients = sum(group.numel * group.each.compute for group in trained)
        self.reducing = sum(group.padded * group.sent for group in trained)
