"""Parameters of one dtype that are gathered, reduced and freed together.

[Note: freed, and the same again] Autograd keeps references to weights from forward to backward, and
views of them. So the whole parameters are made once; to free them is to shrink the memory under
them to nothing, and to gather them again is to let it grow and write the same values there. What
autograd kept is valid again by then. Writing raises a tensor's version, by which autograd knows
that what it kept was changed: we write through `.data`, which has a version of its own. While the
weights are freed their version *is* raised, so that a backward that comes to them in that state
raises an error, instead of reading memory that is not there.

[Note: temporary memory] What a collective has taken or given may still be referred to by its last
handles, until the group's next call. So memory that is done with is shrunk to nothing, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from minidist.comm.comm import Comm, Handle
from minidist.parallel.fsdp.gradients import Gradients
from minidist.parallel.fsdp.shard import Replaced, cut_out, plain
from minidist.parallel.sharding.layouts import LAYOUTS, Layout


class Named(Protocol):
    """What a block wants to know of its unit."""

    @property
    def title(self) -> str:
        """What messages call it."""

    @property
    def where(self) -> str:
        """The same with this rank."""


class Place(NamedTuple):
    """Where a parameter is: an attribute of a module."""

    module: nn.Module
    attribute: str


class Held(NamedTuple):
    """A parameter to be sharded: its name in the unit's module, and all places where it is."""

    name: str
    parameter: Parameter
    places: list[Place]


class Block:
    """Parameters of one dtype, all trainable or all frozen when they were wrapped.

    Args:
        held: the parameters.
        unit: has the unit's name.
        layout: of `LAYOUTS`.
        comm: between the ranks that share them.
        param_dtype: in which they are gathered and used; as they are if None.
        reduce_dtype: in which their gradients are averaged; as they are used if None.

    Attributes:
        names: of the parameters, in the unit's module.
        layout: where each rank's parts lie.
        local: 1-D, this rank's parts of all of them.
        shards: views of `local`, which are the module's parameters while it is sharded.
        wholes: what they are while it is not; empty before the first time.
        gradients: those of the whole parameters, on their way to the shards.
        dtype, param_dtype, reduce_dtype: of the shards, of the whole parameters, and in which
            gradients are averaged.
    """

    def __init__(
        self,
        held: Sequence[Held],
        unit: Named,
        layout: str,
        comm: Comm,
        param_dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
    ) -> None:
        first = held[0].parameter
        self.names = [each.name for each in held]
        self.dtype = first.dtype
        floating = first.dtype.is_floating_point
        self.param_dtype = (param_dtype if floating else None) or first.dtype
        self.reduce_dtype = (reduce_dtype if floating else None) or self.param_dtype
        self.layout: Layout = LAYOUTS[layout](
            [each.parameter.shape for each in held], comm.ranks, comm.rank
        )
        self._places, self._unit = [each.places for each in held], unit
        self.wholes: list[Parameter] = []
        self.gradients = Gradients(self)
        self._cut([each.parameter for each in held])
        for index, each in enumerate(held):
            Replaced.note(each.parameter, self.shards[index].title)

    @torch.no_grad()
    def _cut(self, parameters: Sequence[torch.Tensor], device: torch.device | None = None) -> None:
        """Keep this rank's parts of whole parameters, as new shards."""
        device = device or parameters[0].device
        self.local = torch.zeros(self.layout.shard_numel, dtype=self.dtype, device=device)
        self._views = self.layout.views(self.local)
        self.shards = [
            cut_out(view, like, partial(self.title, index))
            for index, (view, like) in enumerate(zip(self._views, parameters, strict=True))
        ]
        if not parameters[0].is_meta:
            self.take(parameters)
        self._attach(self.shards)

    @torch.no_grad()
    def take(self, wholes: Sequence[torch.Tensor]) -> None:
        """This rank's parts of these become the values of the shards.

        If those are on the meta device, they are made anew where the first of `wholes` is.
        """
        if self.local.is_meta and not wholes[0].is_meta:
            self._move(wholes[0].device)
        for index, (view, whole) in enumerate(zip(self._views, wholes, strict=True)):
            view.copy_(self.layout.cut(index, whole))

    def title(self, index: int) -> str:
        """What messages call a parameter."""
        return f"parameter '{self.names[index]}' of {self._unit.title}"

    # ---- gather, and free ----

    def gather(self, comm: Comm, async_op: bool) -> Handle | None:
        """Begin to make the parameters whole; until `gathered` nothing may use them."""
        self._check()
        if not self.wholes:
            self._make_wholes()
        if self.layout.in_place:
            self._grow()
            self._output = self._flat.data
        else:
            self._output = self._flat.new_empty(self.layout.padded)
        self._input = self.local.to(self.param_dtype)
        return comm.all_gather(self._output, self._input, async_op)

    def gathered(self) -> None:
        """All parts are there: the module's parameters are the whole ones from now on."""
        if not self.layout.in_place:
            self._grow()
            self.layout.arrange(self._output, self._flat.data)
            self._output.untyped_storage().resize_(0)  # [Note: temporary memory]
        if self._input is not self.local:
            self._input.untyped_storage().resize_(0)
        del self._output, self._input
        self._freed.__exit__(None, None, None)
        with plain():
            for whole, shard in zip(self.wholes, self.shards, strict=True):
                if whole.requires_grad != shard.requires_grad:
                    whole.requires_grad_(shard.requires_grad)
        self._attach(self.wholes)

    def free(self) -> None:
        """The module's parameters are the shards from now on: [Note: freed, and the same again]."""
        self._attach(self.shards)
        self._forbid()
        self._flat.untyped_storage().resize_(0)

    @torch.inference_mode(False)  # what is made there can never be trained
    def _make_wholes(self) -> None:
        size = self.layout.whole_numel
        self._flat = torch.empty(size, dtype=self.param_dtype, device=self.local.device)
        self.wholes = [
            Parameter(view.data, requires_grad=False)  # each with a version of its own
            for view in self.layout.parameters(self._flat)
        ]
        self._forbid()
        self._flat.untyped_storage().resize_(0)

    def _grow(self) -> None:
        self._flat.untyped_storage().resize_(self._flat.nbytes)

    def _forbid(self) -> None:
        # Private, and made for this: in torch 2.11 as in 2.13. Its end sets the versions back.
        self._freed = _unsafe_preserve_version_counter(tuple(self.wholes))
        increment_version(self.wholes)

    def _attach(self, parameters: Sequence[Parameter]) -> None:
        for parameter, places in zip(parameters, self._places, strict=True):
            for module, attribute in places:
                if type(module).__setattr__ is nn.Module.__setattr__:
                    module._parameters[attribute] = parameter
                else:  # an LSTM, for one, keeps a list of them
                    setattr(module, attribute, parameter)

    def _check(self) -> None:
        """Raise unless the shards are still the module's, and where we made them."""
        if self.local.is_meta:
            raise RuntimeError(
                f"{self._unit.where}: its parameters are on the meta device, where they have no "
                "values; call minidist.materialize(module) on the root, on all ranks"
            )
        with plain():
            for index, (shard, view) in enumerate(zip(self.shards, self._views, strict=True)):
                module, attribute = self._places[index][0]
                here = module._parameters.get(attribute) is shard
                if not here or shard.data_ptr() != view.data_ptr() or shard.dtype != self.dtype:
                    raise RuntimeError(
                        f"{self._unit.where}: parameter '{self.names[index]}' was replaced, moved "
                        "or cast after wrapping; write into it under torch.no_grad() instead"
                    )

    def _move(self, device: torch.device) -> None:
        with plain():
            like = [
                torch.empty(shard.whole_shape, dtype=self.dtype, device="meta").requires_grad_(
                    shard.requires_grad
                )
                for shard in self.shards
            ]
        self._cut(like, device)

    @property
    def trains(self) -> bool:
        """Whether one of the parameters wants a gradient now."""
        with plain():
            return any(shard.requires_grad for shard in self.shards)
