"""What the ranks say of unused parameters goes to a GPU without the host waiting for the copy."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from minidist.parallel.ddp.reducer import Reducer
from minidist.parallel.fsdp import unit
from minidist.parallel.zero.slices import Slices

CUDA = torch.device("cuda:0")


class Moved(TorchFunctionMode):
    """In the place of a GPU: new tensors stay on the CPU, and how they would leave is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Any, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:
            device, pinned = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
            self.found.append(("made", device, pinned))
        if func is torch.Tensor.to:
            self.found.append(("moved", args[1], kwargs["non_blocking"]))
            return args[0]
        return func(*args, **kwargs)


def comm() -> Any:
    return SimpleNamespace(all_reduce=lambda *_: None)


def of_ddp(used: Any) -> None:
    parameter = SimpleNamespace(device=CUDA)
    owner: Any = SimpleNamespace(bucket_of={_Key(parameter): None}, comm=comm())
    Reducer.used_by_some_rank(owner, used)


class _Key(SimpleNamespace):
    def __init__(self, parameter: Any) -> None:
        super().__init__(device=parameter.device)

    __hash__ = object.__hash__


def of_zero(used: Any) -> None:
    bucket = SimpleNamespace(
        used=used, parameters=[1], shards=[SimpleNamespace()], buffer=SimpleNamespace(device=CUDA)
    )
    Slices._drop_unused(SimpleNamespace(buckets=[bucket], comm=comm()))  # type: ignore[arg-type]


def of_fsdp(used: Any) -> None:
    member = SimpleNamespace(unit=SimpleNamespace(device=CUDA, comms=[comm()]), present=[True])
    owner: Any = next(each for each in vars(unit).values() if hasattr(each, "_write_unused"))
    owner._write_unused(SimpleNamespace(reduced={None: [member]}))


@pytest.mark.parametrize("wrapper", [of_ddp, of_zero, of_fsdp])
def test_flags_are_pinned_and_copied_while_the_host_goes_on(wrapper: Any) -> None:
    with Moved() as moved:
        wrapper({1})
    assert moved.found == [("made", None, True), ("moved", CUDA, True)]
