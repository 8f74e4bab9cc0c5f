"""Checks of DDP, ZeRO and FSDP alike: a module or a parameter that none of them could handle.

Called once, by the public entry of each wrapper, before anything is changed. Messages name the
argument; whoever calls adds the rank.
"""

from collections.abc import Mapping
from typing import NoReturn, TypeGuard

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn import Parameter
from torch.nn.parameter import UninitializedParameter

from minidist.collectives.checks.tensors import overlaps_itself
from minidist.collectives.runtime.group import backends
from minidist.comm.comm import Comm, check_comm
from minidist.comm.ours import Ours

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")  # torch's and ours

# What these do to an element depends on others of its tensor, of which a rank has a part.
NOT_ELEMENTWISE = {
    *("adafactor", "lamb", "lars", "lbfgs", "muon", "shampoo", "soap", "sparseadam"),
    *("came", "distributedshampoo", "fusedlamb", "muonwithauxadam", "singledevicemuon"),
}


def choose_comm(process_group: ProcessGroup | None, comm: Comm | None) -> Comm:
    """Return what a wrapper communicates through: `comm`, or `Ours` between the group's ranks."""
    if comm is None:
        return Ours(process_group)
    where = f"rank {dist.get_rank()}: "
    if process_group is not None:
        raise ValueError(
            f"{where}process_group and comm: expected one of them, got both; a comm has its own "
            "group"
        )
    check_comm(f"{where}comm", comm)
    return comm


class NotCopied:
    """A wrapper that can be neither copied nor pickled; `instead` says what to do."""

    instead: str

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"rank {dist.get_rank()}: a {type(self).__name__} cannot be copied or pickled: its "
            f"hooks and its process group belong to this process; {self.instead}"
        )


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_elementwise(optimizer_class: type) -> bool:
    """Return False for a class that is known, by its name, to need whole tensors."""
    return NOT_ELEMENTWISE.isdisjoint(each.__name__.lower() for each in optimizer_class.__mro__)


def check_module(module: object, *, may_hold_units: bool = False) -> nn.Module:
    """Return the module; TypeError if it is none, ValueError if it or a part of it is wrapped."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got a {type(module).__name__}")
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            raise ValueError(
                f"module: '{name}' rescales the rows that a forward reads, on this rank alone; "
                "build it with max_norm=None, and rescale its weight on all ranks after a step"
            )
        for kind in {each.__name__ for each in type(part).__mro__}.intersection(WRAPPERS):
            if not (name and may_hold_units and kind == "FSDPModule"):
                which = f"its part '{name}'" if name else "it"
                raise ValueError(f"module: {which} is a {kind} already; wrap the bare module")
    return module


def check_tensors(
    argument: str,
    named: Mapping[str, torch.Tensor],
    group: ProcessGroup | None,
    *,
    meta: bool = False,
) -> None:
    """Raise unless each is a plain tensor with values, on a device that the group can reach.

    Parameters must be on one device; with `meta` all may be on the meta device.
    """
    known = backends(group)
    first_on: dict[torch.device, str] = {}  # the first parameter on each device
    for name, tensor in named.items():
        where = f"{argument}: '{name}'"
        if isinstance(tensor, UninitializedParameter):
            raise ValueError(f"{where} has no shape yet; call the module once before")
        if not is_plain(tensor):
            kind = type(tensor).__name__
            raise TypeError(f"{where}: expected a plain tensor, got a {kind}: is it sharded?")
        if tensor.is_meta and not meta:
            raise ValueError(
                f"{where} is on the meta device, where it has no values; call "
                "to_empty(device=...) and initialise it before"
            )
        if not tensor.is_meta and tensor.device.type not in known:
            raise ValueError(
                f"{where} is on {tensor.device}, but the group moves tensors on "
                f"{' and '.join(known)}"
            )
        if overlaps_itself(tensor):
            raise ValueError(f"{where} has elements that share memory; use a clone()")
        if isinstance(tensor, Parameter):
            first_on.setdefault(tensor.device, name)
    if len(first_on) > 1:
        listed = " and ".join(f"'{name}' on {device}" for device, name in first_on.items())
        raise ValueError(f"{argument}: expected all parameters on one device, got {listed}")


def not_dense(parameter: Parameter, name: str) -> TypeError | None:
    if parameter.grad is None or parameter.grad.layout == torch.strided:
        return None
    return TypeError(
        f"expected a dense gradient of {name}, got layout {parameter.grad.layout}; build its "
        "module with sparse=False"
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Return False for a subclass with ways of its own, as shards and DTensors are."""
    own = [kind for kind in type(tensor).__mro__ if kind not in Parameter.__mro__]
    return not any({"__torch_function__", "__torch_dispatch__"} & vars(k).keys() for k in own)
