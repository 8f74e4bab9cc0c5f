"""What happens once, when a module becomes a unit: it is looked at, agreed on, and cut."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from torch import nn
from torch.nn import Parameter
from torch.nn.parameter import UninitializedParameter

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.tensors import backends
from minidist.comm.coalesced import broadcast_coalesced
from minidist.comm.comm import Comm
from minidist.errors import MismatchError
from minidist.parallel.fsdp.mixed import dtypes_of
from minidist.parallel.fsdp.param_group import Held, Place
from minidist.parallel.fsdp.shard import Replaced, Shard
from minidist.parallel.fsdp.unit import Unit
from minidist.parallel.sharding.layouts import LAYOUTS
from minidist.parallel.sharding.partition import alike

FLAG = True, False
AT_ONCE = 16  # parameters that are compared in one message, where ranks differ


def check_options(options: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError, without the rank, if an argument is none that we know."""
    for name, values in {"reshard_after_forward": (True, False, None), "prefetch": FLAG}.items():
        if not any(options[name] is value for value in values):
            expected = ", ".join(map(str, values[:-1])) + f" or {values[-1]}"
            raise TypeError(f"{name}: expected {expected}, got {options[name]!r}")
    dtypes_of(options["mp_policy"])
    if options["layout"] not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {options['layout']!r}")


def check_module(module: object, comm: Comm) -> nn.Module:
    """Return it; raise TypeError or ValueError, without the rank, if it cannot be a unit."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got a {type(module).__name__}")
    if "_unit" in vars(module):
        raise ValueError("module: it is a unit already; fully_shard takes each module once")
    if type(module).forward is nn.Module.forward or isinstance(module, nn.ModuleList):
        raise ValueError(
            f"module: a {type(module).__name__} has no forward, before which its parameters could "
            "be gathered; wrap its members"
        )
    for name, part in module.named_modules():
        kinds = [kind.__name__ for kind in type(part).__mro__]
        for wrapper in ("DistributedDataParallel", "FullyShardedDataParallel"):
            if wrapper in kinds:
                which = f"its part '{name}'" if name else "it"
                raise ValueError(f"module: {which} is a {wrapper}; wrap the bare module")
    inside = {id(shard) for unit in inner_units(module) for b in unit.blocks for shard in b.shards}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if isinstance(parameter, Shard):
            if id(parameter) not in inside:
                raise ValueError(
                    f"module: its '{name}' is sharded already, as {parameter.title()}; wrap the "
                    "inner modules before the outer ones, and tied parameters in one unit"
                )
        else:
            _check_parameter(name, parameter, comm)
    _check_devices(module)
    return module


def _check_parameter(name: str, parameter: Parameter, comm: Comm) -> None:
    if title := Replaced.by(parameter):
        raise ValueError(
            f"module: parameter '{name}' is tied to {title}; tied parameters must be in one unit: "
            "wrap a module that holds both, and not a part that holds one"
        )
    if isinstance(parameter, UninitializedParameter):
        raise ValueError(
            f"module: parameter '{name}' has no shape yet; call the module once before"
        )
    if hasattr(parameter, "device_mesh"):
        raise TypeError(f"module: parameter '{name}' is a DTensor, sharded by something else")
    known = backends(comm.group)
    if not parameter.is_meta and parameter.device.type not in known:
        raise ValueError(
            f"module: parameter '{name}' is on {parameter.device}, but the group moves tensors on "
            f"{' and '.join(known)}"
        )


def _check_devices(module: nn.Module) -> None:
    own = [(h.name, h.parameter) for h in own_parameters(module)]
    for name, parameter in own:
        if parameter.device != own[0][1].device:
            raise ValueError(
                f"module: expected all parameters on one device, got '{own[0][0]}' on "
                f"{own[0][1].device} and '{name}' on {parameter.device}"
            )


def own_parameters(module: nn.Module) -> list[Held]:
    """The parameters that no unit inside has, each with all its places."""
    found: dict[int, Held] = {}
    for prefix, part in own_modules(module):
        for attribute, parameter in part._parameters.items():
            if parameter is None or isinstance(parameter, Shard):
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            held = found.setdefault(id(parameter), Held(name, parameter, []))
            held.places.append(Place(part, attribute))
    return list(found.values())


def own_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a module that are not in a unit inside it, with their names; itself first."""
    inside: set[nn.Module] = set()
    for part in module.modules():
        if part is not module and "_unit" in vars(part):
            inside.update(part.modules())
    for name, part in module.named_modules():
        if part not in inside:
            yield name, part


def inner_units(module: nn.Module) -> list[Unit]:
    """The units inside a module, in the order of `modules()`."""
    return [vars(part)["_unit"] for part in module.modules() if "_unit" in vars(part)]


def grouped(held: Sequence[Held]) -> list[list[Held]]:
    """Those of one dtype, trainable or frozen, together."""
    kinds = alike([each.parameter for each in held])
    return [[held[index] for index in members] for members in kinds]


# ---- between the ranks ----


def agree_on_wrapping(module: object, options: Mapping[str, object], comms: Iterable[Comm]) -> None:
    """Raise on every rank unless all wrap alike; always checked, for else they wait for ever.

    Args:
        module: to be wrapped.
        options: argument → value.
        comms: of the unit, that between the ranks which share it first.

    Raises:
        MismatchError: naming the first thing that differs, or what is wrong on another rank.
        TypeError, ValueError: what is wrong on this one.
    """
    problem: Exception | None = None
    facts: dict[str, str] = {}
    comms = list(comms)
    try:
        check_options(options)
        facts = _facts(check_module(module, comms[0]), options)
    except (TypeError, ValueError) as error:
        problem = error
    told: Exception | None = None
    for comm in comms:  # in the second, what was told in the first is told to the other rows
        try:
            _compare({}, told or problem, comm)
            _agree(facts, comm)
        except (TypeError, ValueError) as error:
            told = told or error
    if told:
        raise told


def _agree(facts: dict[str, str], comm: Comm) -> None:
    """One message where all are alike; else so many that the first that differs can be named."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()
    try:
        _compare({"the unit": digest}, None, comm)
    except MismatchError:
        items = list(facts.items())
        for start in range(0, len(items), AT_ONCE):
            _compare(dict(items[start : start + AT_ONCE]), None, comm)
        raise


def _compare(facts: dict[str, str], problem: Exception | None, comm: Comm) -> None:
    def prepare(call: Call) -> Run:
        for name, value in facts.items():
            call.agree_on(name, value)
        if problem:
            raise problem
        return lambda: None

    collective("fully_shard", comm.group, False, True, prepare)


def _facts(module: nn.Module, options: Mapping[str, object]) -> dict[str, str]:
    """In what the ranks must be alike when they wrap a module."""
    facts = {"module": type(module).__name__}
    facts |= {name: str(value) for name, value in options.items()}
    inside = [name for name, part in module.named_modules() if name and "_unit" in vars(part)]
    facts["units inside"] = ", ".join(inside) or "none"
    for held in own_parameters(module):
        p = held.parameter
        grad = ", requires grad" if p.requires_grad else ""
        tied = f", at {len(held.places)} places" if len(held.places) > 1 else ""
        facts[f"parameter '{held.name}'"] = f"{tuple(p.shape)} {p.dtype}{grad}{tied}"
    return facts


def start_alike(
    module: nn.Module, held: Iterable[Held], shard: Comm, replicate: Comm | None
) -> None:
    """Give all ranks rank 0's parameters and buffers of a unit; nothing on the meta device."""
    buffers = (buffer for _, part in own_modules(module) for buffer in part._buffers.values())
    everything = chain((each.parameter for each in held), buffers)
    tensors = [tensor for tensor in everything if tensor is not None and not tensor.is_meta]
    for comm in [replicate, shard] if replicate else [shard]:
        broadcast_coalesced(tensors, comm)
