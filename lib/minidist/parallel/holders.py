"""Holders of shards: a unit, an optimizer or a layer says what it shards; others ask here.

`full_model` gathers states, gradients and norms from whoever holds a part of a module. So another
wrapper joins them by what it offers: it is a `Holder`, and calls `hold`. A parameter whose values
are sharded, not its gradient alone, also has the attributes of a `Shard`: `title()`, `whole_shape`,
and `part_of(tensor)`, this rank's part of a whole tensor.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast
from weakref import ref

import torch
from torch import nn
from torch.nn import Parameter
from torch.utils.weak import WeakIdKeyDictionary

from minidist.comm.comm import Comm

LABEL = "shards"  # key in a state dict's metadata: whose shards it holds
PREFIX = "module."  # before names in a wrapper around a module


@dataclass(frozen=True)
class ShardedParams:
    """Parameters of one dtype and device, in a flat buffer of which each rank keeps a shard."""

    comm: Comm  # the one between the ranks
    parameters: Sequence[Parameter]  # the module's own
    shards: Sequence[Parameter]  # this rank's part of each, maybe empty, with its gradient
    layout: Any  # a Flat or a RowLayout, where they lie in the shards
    wholes: Callable[[torch.Tensor], list[torch.Tensor]]  # all ranks' shards → each parameter

    def gather(self, parts: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        kept = self.shards[0]
        mine = torch.zeros(self.layout.shard_numel, dtype=kept.dtype, device=kept.device)
        for view, part in zip(self.layout.pieces(mine), parts, strict=True):
            if part is not None:
                view.copy_(part)
        everyone = mine.new_empty(self.layout.padded)
        self.comm.all_gather(everyone, mine)
        return self.wholes(everyone)


class Holder(Protocol):
    """A unit, an optimizer or a layer that shards parameters of a model."""

    comms: Sequence[Comm]  # one between the ranks that share them, maybe one between replicas
    modules: Sequence[nn.Module]  # a model holds all of them or none

    def sharded(self, gradients: bool) -> list[ShardedParams]:
        """Return those whose values are sharded, or else whose averaged gradients are."""


_holders: Any = WeakIdKeyDictionary()  # module or parameter → a weak reference to its holder


def hold(holder: Holder, held: Iterable[nn.Module | Parameter]) -> None:
    """Say who holds these modules, or these parameters; the last one to say so counts."""
    for each in held:
        _holders[each] = ref(holder)


def holder_of(held: object) -> Holder | None:
    """Return what shards a module or a parameter; None if there is none."""
    reference = _holders.get(held)
    return None if reference is None else cast("Holder | None", reference())


def holders(module: nn.Module) -> list[Holder]:
    owners = map(holder_of, (*module.modules(), *module.parameters()))
    return list(dict.fromkeys(each for each in owners if each is not None))
