"""Checks of `fully_shard`: arguments, modules, ranks that wrap differently, and later misuse."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves

from minidist.comm.agreement import agree_on
from minidist.comm.comm import Comm, check_comm
from minidist.comm.ours import Ours
from minidist.errors import MismatchError
from minidist.parallel.autograd.backward import on_entry, tensors
from minidist.parallel.checks import check_module, check_tensors, is_elementwise, is_plain
from minidist.parallel.fsdp.param_group import ParamInfo, own_modules, own_parameters
from minidist.parallel.fsdp.shard import Replaced, Shard, Sharded, ShardValues, no_torch_function
from minidist.parallel.fsdp.unit import Unit
from minidist.parallel.holders import LABEL
from minidist.parallel.steps import steps_on

AT_ONCE = 16  # facts that are compared in one message

_PREFETCH = "the order of the last forward decides"
_MEAN = "gradients are means over the ranks; scale the loss"

INSTEAD = {  # arguments and methods that FSDP2 alone has → what to do instead
    "shard_placement_fn": "parameters are sharded along their first dimension",
    "offload_policy": "shards stay on the module's device",
    "ignored_params": "keep parameters that are not to be sharded outside of the module",
    "dp_mesh_dims": "pass a mesh of one dimension, or of two: (replicate, shard)",
    "set_modules_to_forward_prefetch": _PREFETCH,
    "set_modules_to_backward_prefetch": _PREFETCH,
    "set_unshard_in_backward": "every unit that backward reaches is gathered",
    "set_reshard_after_backward": "a unit is always resharded after its backward",
    "set_requires_all_reduce": "set_requires_gradient_sync(False) accumulates and sends nothing",
    "set_reduce_scatter_divide_factor": _MEAN,
    "set_gradient_divide_factor": _MEAN,
    "set_force_sum_reduction_for_comms": _MEAN,
    "set_reduce_scatter_unused_params": "a parameter that a rank does not use counts as zeros",
    "set_reduce_scatter_max_input_buffers": "two units' gradients are in flight at most",
    "set_post_optim_event": "an all-gather waits for the current stream",
    **dict.fromkeys(
        (
            *("set_all_reduce_hook", "set_custom_all_gather", "set_custom_reduce_scatter"),
            *("set_symm_mem_for_comm", "set_separate_reduce_scatter_group"),
            "set_allocate_memory_from_process_group_for_comm",
        ),
        "fully_shard(..., comm=...) takes a Comm of your own",
    ),
}


def choose_comms(mesh: DeviceMesh | None, comm: Comm | tuple[Comm, Comm] | None) -> list[Comm]:
    """Return the comm between the ranks that share each parameter; then, if any, the replicas'."""
    if mesh is not None and comm is not None:
        raise ValueError("mesh and comm: expected one of them, got both; a comm has its own group")
    if mesh is not None:
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"mesh: expected a DeviceMesh, as init_device_mesh makes, got {mesh!r}")
        if mesh.ndim not in (1, 2):
            raise ValueError(
                "mesh: expected one dimension (shard) or two (replicate, shard), got "
                f"{mesh.ndim}: {tuple(mesh.shape)}"
            )
        if mesh.get_coordinate() is None:
            raise ValueError(f"mesh: this rank is not in it, but {mesh.mesh.flatten().tolist()}")
        return [Ours(mesh.get_group(dimension)) for dimension in reversed(range(mesh.ndim))]
    given = comm if isinstance(comm, tuple) else (Ours() if comm is None else comm,)
    for each in given:
        check_comm("comm", each)
    replicas, *sharers = (set(dist.get_process_group_ranks(each.group)) for each in given)
    if sharers and len(replicas.intersection(*sharers)) != 1:
        raise ValueError(
            "comm: expected a pair (replicate, shard) of groups that share this rank alone, as the "
            f"columns and rows of a mesh do, got {[replicas, *sharers]}"
        )
    return list(reversed(given))


def agree_on_wrapping(
    modules: Sequence[nn.Module], options: Mapping[str, object], comms: Sequence[Comm]
) -> None:
    """Raise on every rank unless all wrap alike; always checked, or they would wait for ever.

    MismatchError names the first thing that differs, or what is wrong on another rank; TypeError
    or ValueError what is wrong on this one.
    """
    facts: dict[str, object] = {}
    problem: Exception | None = None
    try:
        if not isinstance(given := options["reshard_after_forward"], bool | None):
            raise TypeError(f"reshard_after_forward: expected True, False or None, got {given!r}")
        if not hasattr(policy := options["mp_policy"], "param_dtype"):
            raise TypeError(f"mp_policy: expected a MixedPrecisionPolicy, got {policy!r}")
        facts = {**options, **_facts_of(modules, comms[0])}
    except (TypeError, ValueError) as error:
        problem = error
    agree_in_all(comms, "fully_shard", facts, problem)


def agree_in_all(
    comms: Sequence[Comm], what: str, facts: Mapping[str, object], problem: Exception | None
) -> None:
    """Raise on every rank unless all that the comms reach agree; always checked."""
    if problem and not comms:
        where = f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
        raise type(problem)(f"{where}{what}: {problem}")
    failure, every = problem, list(facts.items())
    for comm in comms:  # the second tells the other rows what the first has found
        try:
            for start in range(0, max(1, len(every)), AT_ONCE):
                some = dict(every[start : start + AT_ONCE])
                agree_on(comm, what, some, failure, check=True)
        except (TypeError, ValueError, MismatchError) as error:
            failure = error if failure is problem else failure
    if failure:
        raise failure


def _check_own(own: Sequence[ParamInfo]) -> None:
    for name, parameter, _ in own:
        if isinstance(parameter, Replaced):
            raise ValueError(
                f"module: its '{name}' is tied to {parameter.title()}, which is sharded already; "
                "shard the modules that share a parameter together: fully_shard([one, other])"
            )
        if isinstance(parameter, Shard):
            raise ValueError(
                f"module: its '{name}' is sharded already, as {parameter.title()}; wrap the inner "
                "modules before the outer ones"
            )
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"module: its '{name}' has a hook, which its shard would not have; register one "
                "with register_post_accumulate_grad_hook after fully_shard"
            )


def _facts_of(modules: Sequence[nn.Module], comm: Comm) -> dict[str, object]:
    if not modules:
        raise ValueError("module: expected a torch.nn.Module or a list of some, got an empty list")
    for module in modules:
        check_module(module, may_hold_units=True)
        kind = type(module)
        if kind.forward is nn.Module.forward and "forward" not in vars(module):
            raise ValueError(
                f"module: a {kind.__name__} has no forward, before which its parameters could be "
                "gathered; wrap its members"
            )
    own = own_parameters(modules)
    _check_own(own)
    check_tensors("module", {each.name: each.parameter for each in own}, comm.group, meta=True)
    for name, part in own_modules(modules):
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ValueError(
                f"module: '{name}' has sparse gradients, which cannot be reduce-scattered; "
                "build it with sparse=False"
            )

    every = (each for module in modules for each in module.named_modules())
    inside = [name for name, part in every if name and "_unit" in vars(part)]
    facts: dict[str, object] = {
        "module": ", ".join(type(module).__name__ for module in modules),
        "units inside": ", ".join(inside) or "none",
        "the number of parameters": len(own),
    }
    for name, parameter, places in own:
        grad = ", requires grad" if parameter.requires_grad else ""
        tied = f", at {len(places)} places" if len(places) > 1 else ""
        facts[f"parameter '{name}'"] = f"{tuple(parameter.shape)} {parameter.dtype}{grad}{tied}"
    return facts


@eager
def check_forward(unit: Unit) -> None:
    if unit.context.outermost is None:
        _check_last_backward(unit)
    check_parameters(unit)


def _check_last_backward(unit: Unit) -> None:
    if unit.context.backward.raised:
        raise RuntimeError(
            f"rank {dist.get_rank()}: {unit.context.units[0].title}: its last backward raised; "
            "zero the gradients and call reshard() on the outermost module, on all ranks, before "
            "the next forward"
        )


def _check_backward(unit: Unit) -> None:
    if unit.context.backward.under_way:
        return
    _check_last_backward(unit)
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"rank {dist.get_rank()}: {unit.context.units[0].title}: FSDP frees parameters that "
            "going back through this backward (create_graph=True) would need; train with "
            "DistributedDataParallel"
        )


def steps_of(unit: Unit) -> dict[str, int]:
    """The number of an optimizer's steps on a unit, which is to be the same on all ranks."""
    return {"the optimizer's steps": steps_on(unit.groups[0].shards[0])}


def check_parameters(unit: Unit) -> None:
    where = f"rank {dist.get_rank()}: {unit.title}: "
    for group in unit.groups:
        if group.local.is_meta:
            raise RuntimeError(
                f"{where}its parameters are on the meta device, where they have no values; call "
                "minidist.materialize(module) on the root, on all ranks"
            )
        with no_torch_function():
            for index, (shard, piece) in enumerate(zip(group.shards, group.pieces, strict=True)):
                module, attribute = group.places[index][0]
                mine = (shard, *group.unsharded[index : index + 1])
                here = any(module._parameters.get(attribute) is each for each in mine)
                if not here or shard.data_ptr() != piece.data_ptr():
                    raise RuntimeError(
                        f"{where}parameter '{group.names[index]}' was replaced, moved or cast "
                        "after wrapping; do that before, or write into it under torch.no_grad()"
                    )


@eager
def check_output(unit: Unit, inputs: Any, output: Any) -> None:
    """Raise TypeError if backward could enter the unit by an output that nobody can look into."""
    on_entry(output, inputs, partial(_check_backward, unit))
    if not (torch.is_grad_enabled() and unit.groups) or any(True for _ in tensors(output)):
        return
    for kind in map(type, tree_leaves(output)):
        if kind.__module__ != "builtins" and not is_dataclass(kind):
            raise TypeError(
                f"rank {dist.get_rank()}: {unit.title}: its forward returned a {kind.__name__}, in "
                "which no tensor was found, so that nobody would notice its backward; return "
                "tensors, containers of them, or a dataclass"
            )


def check_step(optimizer: Optimizer, *_: object) -> None:
    """Raise RuntimeError if the optimizer needs more than shards, or has another rank's state."""
    if torch.compiler.is_compiling():  # the functions that it calls are looked at all the same
        return
    groups = optimizer.param_groups
    shards = (each for group in groups for each in group["params"] if isinstance(each, Shard))
    if (shard := next(shards, None)) is None:
        return
    Sharded.plain_state = type(optimizer).__module__.startswith("torch.optim")
    where = f"rank {dist.get_rank()}: {type(optimizer).__name__}: "
    if not (is_elementwise(type(optimizer)) or hasattr(optimizer, "gathers_shards")):
        raise RuntimeError(
            f"{where}expected an optimizer that treats each element alone, as SGD and Adam do: of "
            f"{shard.title()} this rank has a part; train with DistributedDataParallel, or for "
            "Muon build a minidist.Muon"
        )
    for owner in [group.pop(LABEL, shard.owner) for group in groups]:
        if owner != shard.owner:
            raise RuntimeError(
                f"{where}expected the state of {shard.owner}, got that of {owner}: each rank loads "
                "what it has saved"
            )
    if _label_state not in optimizer._optimizer_state_dict_post_hooks.values():
        optimizer.register_state_dict_post_hook(_label_state)


def _label_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Say in an optimizer's state dict whose shards it holds; its tensors refuse what these do."""
    every = (each for group in optimizer.param_groups for each in group["params"])
    owner = next(each.owner for each in every if isinstance(each, Shard))
    for group in state["param_groups"]:
        group[LABEL] = owner
    for index, values in state["state"].items():
        state["state"][index] = {
            name: each.as_subclass(ShardValues) if torch.is_tensor(each) and each.ndim else each
            for name, each in values.items()
        }


def _end_step(*_: object) -> None:
    Sharded.plain_state = False


register_optimizer_step_pre_hook(check_step)
register_optimizer_step_post_hook(_end_step)


# ---- of Muon ----


def agree_on_matrices(params: Any, problem: Exception | None) -> list[Comm]:
    """Raise on every rank unless all were given the same matrices; return between whom they are."""
    found = [each for each in tree_leaves(params) if isinstance(each, torch.Tensor)]
    given = [each for each in found if isinstance(each, nn.Parameter) or each.requires_grad]
    facts: dict[str, object] = {"the number of parameters": len(given)}
    own: Exception | None = None
    for index, each in enumerate(given):
        name = each.title() if isinstance(each, Shard) else f"parameter {index}"
        shape = tuple(each.whole_shape if isinstance(each, Shard) else each.shape)
        facts[f"parameter {index}"] = f"{name}, {shape}, {each.dtype}"
        plain = is_plain(each) and not hasattr(each, "part_of")
        if not (plain or isinstance(each, Shard)):
            kind = type(each).__name__
            own = own or TypeError(
                f"{name}: expected a shard of minidist.fully_shard or a plain parameter, got a "
                f"{kind}"
            )
        elif len(shape) != 2 or not each.is_floating_point():
            own = own or ValueError(
                f"{name}: expected a matrix of floating-point numbers, got {shape}, {each.dtype}; "
                "give it to another optimizer, such as AdamW"
            )
    every = [each.comms for each in given if isinstance(each, Shard)]
    inner = {comms[0].group: comms[0] for comms in every}
    outer = {comm.group: comm for comms in every for comm in comms[1:]}
    comms = [*inner.values(), *outer.values()]
    agree_in_all(comms, "Muon", facts, own or problem)
    return comms


def agree_on_step(groups: Sequence[dict[str, Any]], comms: Sequence[Comm]) -> None:
    """Raise on every rank unless all have the same hyperparameters, and miss the same gradients."""
    gradients = [[each.grad for each in group["params"]] for group in groups]
    missing = [[n for n, each in enumerate(some) if each is None] for some in gradients]
    facts: dict[str, object] = {"the parameters without gradient in each group": missing}
    for name in (each for each in groups[0] if each not in ("params", "param_names", "lr")):
        facts[name] = [group.get(name) for group in groups]
    facts["lr"] = [float(group["lr"]) for group in groups]  # of tensors, on whatever device
    problem: Exception | None = None
    if any(each is not None and each.is_sparse for some in gradients for each in some):
        problem = TypeError("expected dense gradients, got a sparse one")
    for wrong in (group for group in groups if len(group["ns_coefficients"]) != 3):
        problem = ValueError(f"ns_coefficients: expected three, got {wrong['ns_coefficients']}")
    agree_in_all(comms, "Muon.step", facts, problem)
