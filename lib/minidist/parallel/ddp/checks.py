"""Whether a module can be wrapped, and whether it is still the one that was wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeGuard

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn import Parameter
from torch.nn.parameter import UninitializedParameter

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.agreement import wanted
from minidist.collectives.checks.tensors import overlaps_itself
from minidist.collectives.runtime.group import backends
from minidist.comm.comm import Comm, Ours
from minidist.parallel.ddp.bucket import Bucket

WRAPPER = "DistributedDataParallel"  # torch's and ours
FLAGS = ("broadcast_buffers", "find_unused_parameters", "check_gradients")  # alike on all ranks
SYNC = ("naive", "flat", "bucketed", "overlapped")


def choose_comm(group: ProcessGroup | None, comm: Comm | None) -> Comm:
    """What to talk through; ValueError if both are given."""
    if comm is not None and group is not None:
        raise ValueError(
            f"rank {dist.get_rank()}: process_group and comm: expected one of them, got both; "
            "a comm has its own group"
        )
    return comm or Ours(group)


def check_arguments(
    module: nn.Module, comm: Comm, sync: str, sizes: Mapping[str, object], flags: Iterable[bool]
) -> None:
    """Raise if this rank's arguments are wrong, another's are, or they differ between ranks.

    Args:
        module: what is to be wrapped.
        comm: of its group.
        sync: one of `SYNC`.
        sizes: argument → MiB.
        flags: those of `FLAGS`.

    Raises:
        TypeError, ValueError: this rank's own; it names the rank and the argument.
        MismatchError: another rank's, or the ranks differ; where checks are on.
    """

    def prepare(call: Call) -> Run:
        alike = {"sync": sync, **sizes, **dict(zip(FLAGS, flags, strict=True))}
        for name, value in alike.items():
            call.agree_on(name, value)
        if sync not in SYNC:
            raise ValueError(f"sync must be one of {', '.join(SYNC)}, got {sync!r}")
        for name, size in sizes.items():
            if not (is_number(size) and size > 0):
                raise ValueError(f"{name}: expected a number of MiB above 0, got {size!r}")
        check_module(module, comm.group)
        return nothing

    collective(WRAPPER, comm.group, False, None, prepare)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is an int or a float, and not NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def check_module(module: nn.Module, group: ProcessGroup | None) -> None:
    """Raise TypeError or ValueError if the module cannot be wrapped."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got a {type(module).__name__}")
    for name, part in module.named_modules():
        if any(kind.__name__ == WRAPPER for kind in type(part).__mro__):
            which = f"its part {name}" if name else "it"
            raise ValueError(f"module: {which} is a {WRAPPER} already; wrap the bare module")
    named = dict(module.named_parameters())
    if not named:
        raise ValueError("module: expected parameters to train, it has none; call it as it is")
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ValueError(
            f"module: expected a parameter with requires_grad=True, all {len(named)} are frozen"
        )
    for name, tensor in chain(named.items(), module.named_buffers()):
        _check_place(name, tensor, group)
    _check_one_device(named)


def _check_place(name: str, tensor: torch.Tensor, group: ProcessGroup | None) -> None:
    if isinstance(tensor, UninitializedParameter):
        raise ValueError(f"module: parameter {name} has no shape yet; call the module once before")
    if tensor.is_meta:
        raise ValueError(
            f"module: {name} is on the meta device, where it has no values; "
            "call to_empty(device=...) and initialise it before wrapping"
        )
    if overlaps_itself(tensor):
        raise ValueError(
            f"module: {name} has elements that share memory, so rank 0's cannot be written into "
            "it; use a clone()"
        )
    known = backends(group)
    if tensor.device.type not in known:
        raise ValueError(
            f"module: {name} is on {tensor.device}, but the group moves tensors on "
            f"{' and '.join(known)}"
        )


def _check_one_device(named: Mapping[str, Parameter]) -> None:
    first, *others = named.items()
    for name, parameter in others:
        if parameter.device != first[1].device:
            raise ValueError(
                f"module: expected all parameters on one device, got {first[0]} on "
                f"{first[1].device} and {name} on {parameter.device}"
            )


def check_arrival(parameter: Parameter, bucket: Bucket, sent: bool) -> None:
    """Raise if a gradient that autograd has made is none that can be averaged.

    Args:
        parameter: whose it is.
        bucket: where it belongs.
        sent: that has left already.
    """
    where = f"rank {dist.get_rank()}: {WRAPPER}"
    if parameter.grad is None:
        raise RuntimeError(
            f"{where}: expected a gradient of {bucket.name_of(parameter)}, got None: a hook that "
            "was registered before wrapping has taken it away"
        )
    if parameter.grad.layout != torch.strided:
        raise TypeError(
            f"{where}: expected a dense gradient of {bucket.name_of(parameter)}, got layout "
            f"{parameter.grad.layout}; build its module with sparse=False"
        )
    if sent:
        raise RuntimeError(
            f"{where}: {bucket.name_of(parameter)} got a second gradient in one backward, after "
            "its bucket had left. A checkpointed part that is used twice does that: pass "
            "use_reentrant=False to torch.utils.checkpoint, or wrap with sync='bucketed'"
        )


def in_step(what: str, comm: Comm) -> None:
    """Where checks are on, raise MismatchError unless all ranks are at the same point.

    Args:
        what: where this rank is, such as "backward 3".
        comm: of the group.
    """
    if wanted(None):
        collective(f"{WRAPPER}, {what}", comm.group, False, True, lambda _: nothing)


def nothing() -> None:
    """What a call runs that only wants the ranks to agree."""


class Unchanged:
    """Remembers a module's parameters, and sees at little cost whether they still are the same.

    What is added later is averaged by nobody, and what is replaced, by nobody that uses it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._remember()

    def check(self) -> None:
        """Raise RuntimeError if a parameter was added, removed, replaced, frozen or moved."""
        if self._look() == self._seen:
            return
        now = _facts(self._module)
        for name in {**self._facts, **now}:
            if change := _change(self._facts.get(name), now.get(name)):
                raise RuntimeError(
                    f"rank {dist.get_rank()}: module: parameter {name} {change} after wrapping; "
                    "wrap the module anew, on all ranks"
                )
        self._remember()  # some part without parameters was exchanged

    def _remember(self) -> None:
        self._modules = list(self._module.modules())
        self._parameters = list(self._module.parameters())
        self._facts = _facts(self._module)
        self._seen = self._look()

    def _look(self) -> tuple[list[int], list[object]]:
        members = [
            id(member)
            for module in self._modules
            for part in (module._parameters, module._modules)
            for member in part.values()
        ]
        return members, [(p.requires_grad, p.dtype, p.device) for p in self._parameters]


Facts = tuple[Parameter, dict[str, object]]


def _facts(module: nn.Module) -> dict[str, Facts]:
    return {
        name: (p, {"requires_grad": p.requires_grad, "dtype": p.dtype, "device": p.device})
        for name, p in module.named_parameters(remove_duplicate=False)
    }


def _change(before: Facts | None, now: Facts | None) -> str:
    """What has happened to a parameter; "" if nothing."""
    if before is None or now is None:
        return "was removed" if now is None else "was added"
    if before[0] is not now[0]:
        return "was replaced by another"
    for fact, was in before[1].items():
        if now[1][fact] != was:
            return f"had {fact}={was}, and has {now[1][fact]}"
    return ""
