"""What `fully_shard` refuses: arguments, modules, ranks that wrap differently, and later misuse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from minidist.comm.agreement import agree_on
from minidist.comm.comm import Comm
from minidist.parallel.autograd.module_edges import tensors
from minidist.parallel.checks import check_module, check_tensors
from minidist.parallel.fsdp.options import dtype_policy
from minidist.parallel.fsdp.param_group import own_parameters
from minidist.parallel.fsdp.shard import Replaced, Shard, plain
from minidist.parallel.fsdp.unit import Unit
from minidist.parallel.sharding.layouts import LAYOUTS

AT_ONCE = 16  # parameters that are compared in one message


# ---- when a module is wrapped ----


def check_options(options: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError, without the rank, unless all arguments are possible."""
    if not isinstance(given := options["reshard_after_forward"], bool | None):
        raise TypeError(f"reshard_after_forward: expected True, False or None, got {given!r}")
    if not isinstance(given := options["prefetch"], bool):
        raise TypeError(f"prefetch: expected True or False, got {given!r}")
    dtype_policy(options["mp_policy"])
    if options["layout"] not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {options['layout']!r}")


def check_wrapping(module: nn.Module, comm: Comm) -> None:
    """Raise TypeError or ValueError, without the rank, if the module can be no unit."""
    check_module(module, may_hold_units=True)
    if type(module).forward is nn.Module.forward or isinstance(module, nn.ModuleList):
        raise ValueError(
            f"module: a {type(module).__name__} has no forward, before which its parameters could "
            "be gathered; wrap its members"
        )
    units = [vars(part)["_unit"] for part in module.modules() if "_unit" in vars(part)]
    inside = {id(shard) for unit in units for group in unit.groups for shard in group.shards}
    own: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if isinstance(parameter, Replaced):
            raise ValueError(
                f"module: parameter '{name}' is tied to {parameter.title()}; tied parameters must "
                "be in one unit: wrap a module that holds both, and not a part that holds one"
            )
        if not isinstance(parameter, Shard):
            own[name] = parameter
        elif id(parameter) not in inside:
            raise ValueError(
                f"module: its '{name}' is sharded already, as {parameter.title()}; wrap the "
                "inner modules before the outer ones, and tied parameters in one unit"
            )
    check_tensors("module", own, comm.group, meta=True)
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ValueError(
                f"module: '{name}' has sparse gradients, which cannot be reduce-scattered; "
                "build it with sparse=False"
            )


def agree_on_wrapping(
    module: nn.Module, options: Mapping[str, object], comms: Sequence[Comm]
) -> None:
    """Raise on every rank unless all wrap alike; always checked, or they would wait for ever.

    Args:
        module: to be wrapped.
        options: argument → value.
        comms: of the unit, that between the ranks which share it first.

    Raises:
        MismatchError: naming the first thing that differs, or what is wrong on another rank.
        TypeError, ValueError: what is wrong on this rank.
    """
    facts: dict[str, object] = {}
    parameters: list[tuple[str, str]] = []
    problem: Exception | None = None
    try:
        check_options(options)
        check_wrapping(module, comms[0])
        inside = [name for name, part in module.named_modules() if name and "_unit" in vars(part)]
        parameters = list(_parameter_facts(module))
        facts = {"module": type(module).__name__, **options}
        facts["units inside"] = ", ".join(inside) or "none"
        facts["the number of parameters"] = len(parameters)
    except (TypeError, ValueError) as error:
        problem = error
    failure = problem
    for comm in comms:  # the second tells the other rows what the first has found
        try:
            agree_on(comm, "fully_shard", facts, failure, check=True)
            for start in range(0, len(parameters), AT_ONCE):
                some = dict(parameters[start : start + AT_ONCE])
                agree_on(comm, "fully_shard", some, check=True)
        except (TypeError, ValueError) as error:
            failure = error if failure is problem else failure
    if failure:
        raise failure


def _parameter_facts(module: nn.Module) -> Iterable[tuple[str, str]]:
    """In what each parameter must be alike on all ranks."""
    for info in own_parameters(module):
        parameter = info.parameter
        grad = ", requires grad" if parameter.requires_grad else ""
        tied = f", at {len(info.places)} places" if len(info.places) > 1 else ""
        shape = tuple(parameter.shape)
        yield f"parameter '{info.name}'", f"{shape} {parameter.dtype}{grad}{tied}"


# ---- while it is used ----


def check_parameters(unit: Unit) -> None:
    """Raise RuntimeError unless the unit's shards are where they were, and have values."""
    where = f"rank {dist.get_rank()}: {unit.title}: "
    for group in unit.groups:
        if group.local.is_meta:
            raise RuntimeError(
                f"{where}its parameters are on the meta device, where they have no values; call "
                "minidist.materialize(module) on the root, on all ranks"
            )
        with plain():
            for index, (shard, piece) in enumerate(zip(group.shards, group.pieces, strict=True)):
                module, attribute = group.places[index][0]
                mine = (shard, *group.unsharded[index : index + 1])
                here = any(module._parameters.get(attribute) is each for each in mine)
                if not here or shard.data_ptr() != piece.data_ptr() or shard.dtype != group.dtype:
                    raise RuntimeError(
                        f"{where}parameter '{group.names[index]}' was replaced, moved or cast "
                        "after wrapping; write into it under torch.no_grad() instead"
                    )


def check_output(unit: Unit, output: Any) -> None:
    """Raise TypeError if backward could enter the unit by an output that nobody can look into."""
    if not (torch.is_grad_enabled() and unit.groups) or any(True for _ in tensors(output)):
        return
    for leaf in tree_leaves(output):
        known = leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes)
        if not known and not is_dataclass(leaf):
            raise TypeError(
                f"rank {dist.get_rank()}: {unit.title}: its forward returned a "
                f"{type(leaf).__name__}, in which no tensor was found, so that nobody would "
                "notice its backward; return tensors, containers of them, or a dataclass"
            )
