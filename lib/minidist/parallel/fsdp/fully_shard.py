"""Fully sharded data parallel: every rank keeps 1/N of everything, and has a layer whole in use.

`Life` is FSDP, in the four moments of a unit's life. `fully_shard`, below it, makes a module a unit
and calls them from hooks on its forward. How a unit is gathered, freed and reduced is in
`unit.py`; in what order, and how backward ends, in `prefetch.py`.

[Note: checkpoints] Activation checkpointing runs a forward a second time, in the midst of backward.
Then the parameters are whole, or are made so, and stay it until their backward is over: that frees
them. The order of the units, and what comes next, is not that of a forward; nothing is fetched.

After Rajbhandari et al. (2020), *ZeRO*, stage 3; Zhao et al. (2023), *PyTorch FSDP*; and PyTorch's
`torch.distributed.fsdp.fully_shard`, whose verbs these are.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from minidist.comm.comm import Comm
from minidist.parallel.autograd.module_edges import cast, in_backward, on_entry, on_exit, tensors
from minidist.parallel.fsdp import sharded
from minidist.parallel.fsdp.checks import (
    agree_on_wrapping,
    grouped,
    own_parameters,
    start_alike,
)
from minidist.parallel.fsdp.fsdp_module import FSDPModule, units
from minidist.parallel.fsdp.mesh import Pair, choose_comms
from minidist.parallel.fsdp.mixed import dtypes_of
from minidist.parallel.fsdp.prefetch import Member, Passes
from minidist.parallel.fsdp.unit import Unit

__all__ = ["FSDPModule", "fully_shard", "units"]

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy


class Life:
    """A unit's parameters are whole only while they are used: in forward, and in backward."""

    def __init__(self, unit: Unit, reshard_after_forward: bool | None, prefetch: bool) -> None:
        self.unit, self.prefetch, self.sync = unit, prefetch, True
        self.reshard_after_forward = reshard_after_forward
        self.passes = Passes()  # shared with the units round it
        self.inside = self.hooked = self.going_back = False
        self.fetched = self.stays = self.seen = self.blind = False

    def pre_forward(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        """1. Gather the parameters. Begin to gather the next unit's, while this one computes."""
        recomputes = in_backward()  # [Note: checkpoints]
        if not recomputes:
            self.passes.enter(self)
            self.inside = True
        self.seen |= torch.is_grad_enabled()
        self.use()
        if not recomputes:
            self.fetch(self.passes.after(self))
        policy = self.unit.policy
        inputs = cast((args, kwargs), policy.param_dtype if policy.cast_forward_inputs else None)
        return inputs if self.going_back else on_exit(inputs, self.post_backward)

    def post_forward(self, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """2. Free them. Ask to be told when backward comes to an output."""
        recomputes, self.inside = in_backward(), False
        back = not self.going_back and on_entry(output, (args, kwargs), self.pre_backward)
        if self.keeps_whole or self.cannot_tell(output):
            self.stays = True
        elif not recomputes:
            self.reshard()
        if not recomputes:
            self.passes.leave(self, back)
        return cast(output, self.unit.policy.output_dtype)

    def pre_backward(self) -> None:
        """3. Gather them again; begin to gather those of the unit that ran before."""
        self.passes.begin_backward()
        if not self.going_back:
            self.going_back = True
            self.use()
            self.fetch(self.passes.before(self))

    @torch.no_grad()
    def post_backward(self) -> None:
        """4. Free them. Begin to average the gradients: this rank gets its shard's."""
        self.going_back, self.stays = False, self.passes.twice
        if not self.stays:
            self.reshard()
        if self.unit.has_gradients and self.sync:
            self.passes.reductions.begin(self.unit)
        elif self.unit.has_gradients:
            self.unit.keep_gradients()

    def after_forward(self, *_: object) -> None:
        """Whether it has raised or not; if it has, clean up."""
        if self.inside:
            self.inside = False
            with suppress(Exception):  # the first one is under way already
                self.passes.leave(self, False)
                self.reshard()

    def use(self) -> None:
        """The parameters are whole, when it returns."""
        self.unit.unshard()
        self.fetched = False

    def fetch(self, other: Member | None) -> None:
        """Begin to gather another unit's parameters."""
        if other and self.prefetch:
            other.fetched |= other.unit.begin_unshard()

    def reshard(self) -> None:
        """Free the whole parameters."""
        self.unit.reshard()
        self.fetched = self.stays = False

    def cannot_tell(self, output: object) -> bool:
        """Whether backward may come, unseen, by an output that we cannot look into.

        Then its first gradient tells that it has begun, and the parameters wait for it, whole.
        """
        if not torch.is_grad_enabled() or any(True for _ in tensors(output)):
            return False
        if not self.hooked:
            self.hooked = True
            for whole in self.unit.parameters():
                if whole.requires_grad:
                    whole.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        lambda _: self.passes.begin_backward()
                    )
        return True

    @property
    def keeps_whole(self) -> bool:
        """Whether they stay whole from forward to backward."""
        reshards = self.reshard_after_forward
        if reshards is None:
            reshards = self.unit is not self.passes.root
        return torch.is_grad_enabled() and not reshards


def fully_shard(
    module: nn.Module,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | None = True,
    mp_policy: MixedPrecisionPolicy | None = None,
    comm: Comm | Pair | None = None,
    layout: str = "dim0",
    prefetch: bool = True,
) -> Any:
    """Make a module a unit, in place: its parameters are sharded, and whole only while it runs.

    As `torch.distributed.fsdp.fully_shard`: called on blocks, and at last on the whole model, which
    takes what is left. Then the optimizer is built, of the shards that `parameters()` gives. After
    `backward()` each has its part of the mean of all ranks' gradients.

    Args:
        module: on one device, or on the meta device (then see `minidist.materialize`). Rank 0's
            parameters and buffers are given to all.
        mesh: between which ranks; of two dimensions (replicate, shard) for hybrid sharding: shards
            among the ranks of a row, the same on each row. All ranks in one row if None.
        reshard_after_forward: free the parameters after forward, and gather them again in backward.
            False keeps them. None keeps the outermost unit's alone, which backward needs first
            (PyTorch's default).
        mp_policy: dtypes of gathered parameters, of gradients as they are reduced, of outputs; the
            shards stay as they are.
        comm: instead of a mesh: what the ranks talk through, or a pair (replicate, shard).
        layout: "dim0", each parameter cut by rows, as FSDP2; "flat", the unit's parameters end to
            end, cut anywhere: see `minidist.parallel.sharding.layouts`.
        prefetch: let this unit begin to gather the one that will follow it.

    Returns:
        The module; its class is a new one, with what `FSDPModule` has.

    Raises:
        TypeError, ValueError: of this rank's arguments or module; it names the rank.
        MismatchError: the ranks wrap differently.
        RuntimeError: later: of a parameter that is used while it is sharded, was replaced or moved;
            of an optimizer that was built before; after a backward that raised.
    """
    options = {
        "reshard_after_forward": reshard_after_forward,
        "mp_policy": mp_policy,
        "layout": layout,
        "prefetch": prefetch,
    }
    shard, replicate = choose_comms(mesh, comm, module)
    agree_on_wrapping(module, options, [shard, replicate] if replicate else [shard])
    policy = dtypes_of(mp_policy)
    held = own_parameters(module)
    start_alike(module, held, shard, replicate)
    unit = Unit(module, grouped(held), layout, shard, replicate, policy)
    life = Life(unit, reshard_after_forward, prefetch)
    _take_in(module, life)
    module.register_forward_pre_hook(life.pre_forward, prepend=True, with_kwargs=True)
    module.register_forward_hook(life.post_forward, with_kwargs=True)
    module.register_forward_hook(life.after_forward, always_call=True)
    sharded.label(module, shard, layout)
    return module


def _take_in(module: nn.Module, life: Life) -> None:
    """Let the unit know those inside it, and the module be one that has a unit."""
    kind = type(module)
    module.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    module._unit, module._life = life.unit, life  # type: ignore[assignment]
    for name, part in module.named_modules():
        if isinstance(part, FSDPModule):
            part._unit.name, part._life.passes = name, life.passes
            life.passes.members.append(part._life)
