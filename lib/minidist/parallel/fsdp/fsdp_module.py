"""What a module gains that `fully_shard` has made a unit."""

from __future__ import annotations

from typing import Any

from torch import nn

from minidist.parallel.fsdp.prefetch import Member
from minidist.parallel.fsdp.unit import Unit


class FSDPModule:
    """What a module can do that `fully_shard` has made a unit; isinstance tells.

    As PyTorch's class of that name. A unit's class is a new one, of this and the class it had.
    """

    _life: Member
    _unit: Unit

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A bare module: a slice of a container is made by calling its class."""
        bare: Any = cls.__mro__[2]
        return bare(*args, **kwargs)

    def unshard(self, async_op: bool = False) -> Unsharding | None:
        """Make this unit's own parameters whole, those of units inside it not; on all ranks.

        Args:
            async_op: only begin with it; they are whole after the `wait()` of what is returned.
        """
        self._unit.begin_unshard(async_op)
        if async_op:
            return Unsharding(self._unit)
        self._unit.unshard()
        return None

    def reshard(self) -> None:
        """Free this unit's whole parameters; what was written into them is lost.

        On the outermost unit, after a backward that raised: forget all that was under way.
        """
        self._life.passes.forget()
        self._life.reshard()

    def set_requires_gradient_sync(self, flag: bool, *, recurse: bool = True) -> None:
        """Whether the next backwards average gradients, or add them up whole on this rank.

        Args:
            flag: False for all backwards of a step but the last one. The whole gradients of the
                unit are held as long.
            recurse: for the units inside, too.
        """
        for part in self.modules() if recurse else [self]:  # type: ignore[attr-defined]
            if isinstance(part, FSDPModule):
                part._life.sync = flag

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of any module: of the shards, be the parameters whole or not, and of what is kept."""
        for unit in units(self):  # type: ignore[arg-type]
            for block in unit.blocks:
                block.gradients.drop()
                for shard in block.shards:
                    if shard.grad is not None:
                        shard.grad = None if set_to_none else shard.grad.zero_()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What `to()`, `half()`, `to_empty()` and the like call for each tensor."""
        for block in self._unit.blocks:
            same = fn(block.local)
            if same.data_ptr() != block.local.data_ptr() or same.dtype != block.local.dtype:
                raise RuntimeError(
                    f"{self._unit.where}: it cannot be moved or cast after fully_shard, for its "
                    "shards share memory; do it before, or, to come from the meta device, call "
                    "minidist.parallel.full_model.meta_device(module, device)"
                )
        return super()._apply(fn, recurse)  # type: ignore[misc]

    def __deepcopy__(self, memo: object) -> Any:
        """Raise TypeError: hooks and the process group belong to this module and process."""
        raise TypeError(
            f"{self._unit.where}: it cannot be copied or pickled: its hooks and its process group "
            "belong to this module and process; copy before fully_shard, or take its state_dict()"
        )

    def __reduce_ex__(self, protocol: object) -> Any:
        """As `__deepcopy__`."""
        return self.__deepcopy__(protocol)


class Unsharding:
    """An `unshard` under way."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    def wait(self) -> None:
        """Return when the parameters are whole."""
        self._unit.unshard()


def units(module: nn.Module) -> list[Unit]:
    """The units in a module, itself first, in the order of `modules()`."""
    return [part._unit for part in module.modules() if isinstance(part, FSDPModule)]
