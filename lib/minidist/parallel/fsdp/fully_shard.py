"""`fully_shard`: what users call to make a module a unit, and what the module gains by it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from minidist.comm.agreement import agree_on
from minidist.comm.comm import Comm, Handle, broadcast_coalesced
from minidist.errors import check_flags
from minidist.parallel.fsdp import checks
from minidist.parallel.fsdp.param_group import MixedPrecisionPolicy, own_modules, own_parameters
from minidist.parallel.fsdp.unit import Unit
from minidist.parallel.holders import LABEL, ShardedParams, hold
from minidist.parallel.sharding.partition import alike


def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | None = True,
    mp_policy: Any = None,
    comm: Comm | tuple[Comm, Comm] | None = None,
    **torch_only: Any,
) -> Any:
    """Make a module a unit, in place: its parameters are sharded, and whole only while it runs.

    Of a list of modules make one unit, whole from the forward of the first to the end of that of
    the last; so modules that share a parameter are sharded together: `fully_shard([embed, head])`.

    As `torch.distributed.fsdp.fully_shard`: call it on blocks, and at last on the whole model,
    which takes what is left. Then build the optimizer, from the shards that `parameters()` returns;
    it must treat each element alone, as SGD and Adam do, or be `minidist.Muon`. To clip their
    gradients, call `minidist.clip_grad_norm_`. What needs whole tensors, as norms do, refuses them.

    Args:
        module: one, or a list; on one device, or on the meta device (then see
            `minidist.materialize`). All ranks get rank 0's parameters and buffers.
        mesh: between which ranks; of two dimensions (replicate, shard) for hybrid sharding: shards
            among the ranks of a row, the same on each row. All ranks in one row if None.
        reshard_after_forward: free the parameters after forward, and gather them again in backward.
            None keeps the outermost unit's, which backward needs first (PyTorch's default).
        mp_policy: torch's `MixedPrecisionPolicy`: dtypes of gathered parameters, of gradients as
            they are reduced, of outputs; the shards stay as they are.
        comm: instead of a mesh: what the ranks communicate through, or a pair (replicate, shard).
        torch_only: arguments of PyTorch's that minidist lacks; refused with what to do instead.

    Returns:
        The module, or the list. A module's class is a new one, with what `FSDPModule` has.

    Raises:
        TypeError, ValueError: of this rank's arguments or module; it names the rank.
        MismatchError: the ranks wrap differently.
    """
    policy = MixedPrecisionPolicy() if mp_policy is None else mp_policy
    options = {"reshard_after_forward": reshard_after_forward, "mp_policy": policy}
    try:
        for name in torch_only:
            raise TypeError(f"{name}: {checks.INSTEAD.get(name, 'there is no such argument')}")
        comms = checks.choose_comms(mesh, comm)
    except (TypeError, ValueError) as error:  # there are no ranks yet that could be told
        raise type(error)(f"rank {dist.get_rank()}: fully_shard: {error}") from None
    modules = list(dict.fromkeys(module)) if isinstance(module, list | tuple) else [module]
    modules = [getattr(each, "_orig_mod", each) for each in modules]  # inside a torch.compile
    checks.agree_on_wrapping(modules, options, comms)

    infos = own_parameters(modules)
    parameters: list[torch.Tensor] = [info.parameter for info in infos]
    buffers = [buffer for _, part in own_modules(modules) for buffer in part._buffers.values()]
    tensors = [each for each in (*parameters, *buffers) if each is not None and not each.is_meta]
    for each in reversed(comms):  # rank 0's to the first rank of each row, then along the rows
        broadcast_coalesced(tensors, each)
    groups = [[infos[index] for index in members] for members in alike(parameters)]

    def agree(what: str, async_op: bool) -> Handle | None:
        return agree_on(comms[0], f"fully_shard: {what}", checks.steps_of(unit), async_op=async_op)

    unit = Unit(modules, groups, comms, policy, reshard_after_forward, agree)

    names: dict[Unit, list[str]] = {}
    holder = UnitHolder(unit)
    for wrapped in modules:
        kind = type(wrapped)
        wrapped.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
        wrapped._unit, wrapped._holder = unit, holder  # type: ignore[assignment]  # alive as long
        for name, part in wrapped.named_modules():
            if isinstance(part, FSDPModule):
                names.setdefault(part._unit, []).append(name or "root")
        wrapped.register_forward_pre_hook(unit.pre_forward, prepend=True, with_kwargs=True)
        wrapped.register_forward_pre_hook(lambda *_: checks.check_forward(unit), prepend=True)
        wrapped.register_forward_hook(
            lambda _, *given: checks.check_output(unit, given[:-1], given[-1]), with_kwargs=True
        )
        wrapped.register_forward_hook(unit.post_forward, with_kwargs=True, always_call=True)
    for part, its in names.items():
        part.name, part.context = ", ".join(dict.fromkeys(its)), unit.context
    unit.context.units = list(names)
    hold(holder, modules)
    return module


def units(module: nn.Module) -> list[Unit]:
    """Return the units in a module, itself first, in the order of `modules()`."""
    found = (part._unit for part in module.modules() if isinstance(part, FSDPModule))
    return list(dict.fromkeys(found))


class UnitHolder:
    def __init__(self, unit: Unit) -> None:
        self.unit, self.modules, self.comms = unit, unit.modules, unit.comms

    def sharded(self, gradients: bool) -> list[ShardedParams]:
        self.unit.reshard()
        comm = self.unit.comm
        return [
            ShardedParams(comm, group.shards, group.shards, group.layout, group.layout.tensors)
            for group in self.unit.groups
        ]


class UnshardHandle(NamedTuple):
    """An asynchronous `unshard`: `wait()` returns when the parameters are whole."""

    wait: Callable[[], None]


class FSDPModule:
    """Methods of a unit, as in PyTorch's class of that name: a base of its module's new class."""

    _unit: Unit

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        bare: Any = cls.__mro__[2]  # behind the new class and this one; FSDP2 finds it so too
        return bare(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in checks.INSTEAD:
            where = f"rank {dist.get_rank()}: {self._unit.title}"
            raise AttributeError(f"{where}: {name}: {checks.INSTEAD[name]}")
        return super().__getattr__(name)  # type: ignore[misc]

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Make this unit's own parameters whole, but not those of units inside; on all ranks.

        With `async_op` only begin; they are whole after the `wait()` of what is returned.
        """
        checks.check_parameters(self._unit)
        self._unit.begin_unshard(async_op)
        if async_op:
            return UnshardHandle(self._unit.unshard)
        self._unit.unshard()
        return None

    def reshard(self) -> None:
        """Free this unit's unsharded parameters; what was written into them is lost.

        After a backward that raised, call it on the outermost unit: it also drops all that was
        under way.
        """
        self._unit.context.recover()
        self._unit.reshard()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Choose whether the next backwards average gradients, or accumulate them on this rank.

        False for all backwards of a step but the last one; full gradients are held as long.
        """
        check_flags({f"rank {dist.get_rank()}: requires_gradient_sync": requires_gradient_sync})
        for unit in units(self) if recurse else [self._unit]:  # type: ignore[arg-type]
            unit.requires_gradient_sync = requires_gradient_sync

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Choose whether later forwards free the parameters: see `fully_shard`."""
        check_flags({f"rank {dist.get_rank()}: reshard_after_forward": reshard_after_forward})
        for unit in units(self) if recurse else [self._unit]:  # type: ignore[arg-type]
            unit.reshard_after_forward = reshard_after_forward

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Do nothing: every backward waits for its own gradients, where FSDP2's last one does."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of the shards, also while unsharded, and accumulated ones."""
        for unit in units(self):  # type: ignore[arg-type]
            for group in unit.groups:
                group.drop_gradients()
                for shard in group.shards:
                    if shard.grad is not None:
                        shard.grad = None if set_to_none else shard.grad.zero_()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Say in a state dict whose shards it holds: another rank's often have the same shapes."""
        self.reshard()
        destination._metadata[prefix[:-1]][LABEL] = self._unit.owner  # which `torch.save` keeps
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        self.reshard()
        unit = f"unit {prefix[:-1]}" if prefix else "the root unit"
        where = f"rank {dist.get_rank()}: load_state_dict: {unit}: "
        given, mine = metadata.get(LABEL, "nobody"), self._unit.owner
        if given != mine:
            raise RuntimeError(
                f"{where}expected the shards of {mine}, got those of {given}; a full state, on any "
                "number of ranks, goes by minidist.load_full_state_dict"
            )
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[misc]

    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError(
            f"rank {dist.get_rank()}: {self._unit.title}: it cannot be copied or pickled; copy it "
            "before fully_shard, or take its state_dict()"
        )

    __reduce_ex__ = __deepcopy__
