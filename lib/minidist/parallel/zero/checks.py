"""What a ZeroOptimizer can be built over, and whether it still is what it was built over."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch.distributed import ProcessGroup
from torch.nn import Parameter
from torch.nn.parameter import UninitializedParameter
from torch.utils.weak import WeakIdKeyDictionary

from minidist.collectives.call import Call, Run, collective
from minidist.collectives.checks.tensors import check_apart, overlaps_itself, same_place
from minidist.collectives.runtime.group import backends
from minidist.comm.comm import Comm
from minidist.comm.replicas import Entry, digest, same
from minidist.parallel.autograd.backward import watched
from minidist.parallel.sharding.partition import Named
from minidist.parallel.zero.bucket import Part
from minidist.parallel.zero.param_groups import Group, hyper, named_in

NAME = "ZeroOptimizer"
AVERAGED = "the gradients, which DDP makes alike (without it pass gradients='local')"
MOST = 8  # groups that are compared one by one before a step

held: Any = WeakIdKeyDictionary()  # parameter → a weak reference to its ZeroOptimizer


def nothing() -> None:
    """What a call runs that only wants the ranks to agree."""


def check_once(group: Group) -> None:
    """Raise ValueError if a group to be added has a parameter twice."""
    params = group.get("params") if isinstance(group, dict) else None
    if isinstance(params, Iterator):
        params = group["params"] = list(params)
    if not isinstance(params, list | tuple):
        return  # torch looks at the rest
    seen: dict[int, int] = {}
    for place, each in enumerate(params):
        parameter = each[1] if isinstance(each, tuple) and len(each) == 2 else each
        before = seen.setdefault(id(parameter), place)
        if before != place:
            raise ValueError(f"params: the parameters {before} and {place} of a group are the same")


def check_parameters(named: Sequence[Named], group: ProcessGroup | None, local: bool) -> None:
    """Raise TypeError or ValueError if these parameters cannot be put into parts.

    Args:
        named: all that are to be.
        group: between whose ranks they travel.
        local: their gradients are to be averaged by the optimizer.
    """
    if not any(parameter.requires_grad for _, parameter in named):
        raise ValueError(
            f"params: expected a parameter with requires_grad=True, all {len(named)} are frozen"
        )
    for name, parameter in named:
        _check_place(name, parameter, group)
        if _still(partial(holder, parameter)):
            raise ValueError(
                f"params: {name} is held by another {NAME}; del that one before (a traceback may "
                "keep it, too), or use its add_param_group"
            )
        if local and _still(partial(watched, parameter)):
            raise ValueError(
                f"params: the gradient of {name} is taken by DistributedDataParallel or another "
                f"{NAME} already; pass the parameters of a bare module, or gradients='averaged'"
            )
    try:
        check_apart(dict(named), {})
    except ValueError as error:
        raise ValueError(f"params: {error}") from None


def hold(parameters: Sequence[torch.Tensor], owner: object) -> None:
    """From now on `owner` is their ZeroOptimizer, as long as it lives."""
    for parameter in parameters:
        held[parameter] = ref(owner)


def holder(parameter: torch.Tensor) -> object | None:
    """The ZeroOptimizer that holds a parameter."""
    found = held.get(parameter)
    return None if found is None else found()


def _still(look: Callable[[], object]) -> bool:
    """Whether there is something, also when what nobody uses any more has been collected."""
    if not look():
        return False
    gc.collect()
    return bool(look())


def _check_place(name: str, parameter: torch.Tensor, group: ProcessGroup | None) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise ValueError(f"params: {name} has no shape yet; call the module once before")
    kind = type(parameter)
    own = [each for each in kind.__mro__ if each not in Parameter.__mro__]
    if any({"__torch_function__", "__torch_dispatch__"} & vars(each).keys() for each in own):
        raise TypeError(
            f"params: expected plain tensors, got {name}, a {kind.__name__}; what is sharded "
            "already needs no ZeroOptimizer"
        )
    if parameter.is_meta:
        raise ValueError(
            f"params: {name} is on the meta device, where it has no values; call "
            "to_empty(device=...) and initialise it before"
        )
    known = backends(group)
    if parameter.device.type not in known:
        raise ValueError(
            f"params: {name} is on {parameter.device}, but the group moves tensors on "
            f"{' and '.join(known)}"
        )
    if overlaps_itself(parameter):
        raise ValueError(f"params: {name} has elements that share memory; use a clone()")


# ---- what must be alike on all ranks ----


def same_groups(kind: type, groups: Sequence[Group], first: int, comm: Comm) -> None:
    """Make sure that all ranks have the same groups, from the number `first` on.

    Raises:
        MismatchError: on every rank, naming the first group or parameter that differs.
    """
    entries = []
    for number, named in enumerate(named_in(groups, first), start=first):
        title = f"group {number} of {kind.__name__}"
        entries.append(Entry("", title, f" with {hyper_parameters(groups[number])}"))
        for name, parameter in named:
            like = f", {tuple(parameter.shape)}, {parameter.dtype} on {parameter.device.type}"
            like += ", requires grad" if parameter.requires_grad else ""
            entries.append(Entry(name, f"{name} in group {number}", like))
    same(entries, comm, "optimizers")


def hyper_parameters(group: Group) -> str:
    """Such as "betas=(0.9, 0.999), lr=0.1"."""
    return ", ".join(f"{key}={value}" for key, value in sorted(hyper(group).items()))


def meet(
    what: str,
    comm: Comm,
    groups: Sequence[Group] = (),
    check: Run = nothing,
    averaged: Sequence[torch.Tensor] = (),
) -> None:
    """All ranks come here, where checks are on.

    Args:
        what: is called, such as "ZeroOptimizer.step".
        comm: between the ranks.
        groups: whose hyper-parameters must be alike, since each rank steps on its slices by its
            own.
        check: raises if something is wrong on this rank; the others are told.
        averaged: gradients that must be alike, since each rank takes its slices of its own.
    """

    def prepare(call: Call) -> Run:
        check()
        if not call.checked:
            return nothing
        for number, group in enumerate(groups[:MOST]):
            call.agree_on(f"the hyper-parameters of group {number}", hyper_parameters(group))
        if groups[MOST:]:
            call.agree_on("other hyper-parameters", [*map(hyper_parameters, groups[MOST:])])
        if averaged:
            call.agree_on(AVERAGED, digest(averaged))
        return nothing

    collective(what, comm.group, False, None, prepare)


class Unchanged:
    """Remembers the parameters of the groups, and sees whether they still are where they were."""

    def __init__(self, groups: Sequence[Group], parts: Sequence[Part]) -> None:
        self._groups, self._parts = groups, parts
        self._seen = self._look()

    def check(self) -> None:
        """Raise RuntimeError if a parameter was exchanged in its group, or moved."""
        for number, (before, now) in enumerate(zip(self._seen, self._look(), strict=False)):
            if before != now:
                raise RuntimeError(
                    f"param_groups[{number}]['params'] was changed after the {NAME} was built; "
                    "use add_param_group, or build it anew, on all ranks"
                )
        if len(self._seen) != len(self._groups):
            raise RuntimeError(
                f"param_groups: expected {len(self._seen)}, got {len(self._groups)}; use "
                "add_param_group"
            )
        for part in self._parts:
            for name, parameter, place in zip(
                part.names, part.parameters, part.places, strict=True
            ):
                if not same_place(parameter, place):
                    raise RuntimeError(
                        f"{name} was given other memory after the {NAME} was built, as .to() and "
                        "`.data =` do; build it anew, on all ranks"
                    )

    def _look(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in self._groups]
