"""torch's and minidist's own, while a learner's function must do without them."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

import minidist
from course.ask.verdict import Wrong
from minidist.collectives.call import Call
from minidist.parallel.fsdp.unit import Unit

# torch's function → methods of a process group through which it goes, however it was imported.
METHODS = {
    "all_reduce": "allreduce allreduce_coalesced",
    "all_gather": "allgather",
    "all_gather_into_tensor":
        "_allgather_base all_gather_single allgather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor":
        "_reduce_scatter_base reduce_scatter_single reduce_scatter_tensor_coalesced",
    "all_to_all": "alltoall",
    "all_to_all_single": "alltoall_base all_to_all_single",
    **{name: name for name in ("broadcast", "gather", "scatter", "reduce")},
}  # fmt: skip


def without_torch(instead: str, allowed: str = "") -> AbstractContextManager[None]:
    """Inside `with`, torch.distributed's collectives raise Wrong, except one that is allowed.

    So does the end of the block, in case the function has caught it. `instead`: what the exercise
    is to be solved with, for the message ("`broadcast`").
    """
    refused = [
        (dist.ProcessGroup, method, f"torch.distributed's {name}")
        for name, methods in METHODS.items()
        for method in methods.split()
        if hasattr(dist.ProcessGroup, method) and name != allowed
    ]
    return _without(refused, instead)


def without_minidist(instead: str) -> AbstractContextManager[None]:
    """The same for minidist's collectives."""
    return _without([(Call, "__init__", "minidist's collectives")], instead)


def without_wrappers(instead: str) -> AbstractContextManager[None]:
    """The same for the classes of minidist that wrap a model or an optimizer."""
    kinds = [minidist.DistributedDataParallel, minidist.ZeroOptimizer]
    methods = [(kind, "__init__", f"minidist's {kind.__name__}") for kind in kinds]
    methods.append((Unit, "__init__", "minidist's fully_shard"))
    return _without(methods, instead)


@contextmanager
def _without(methods: Iterable[tuple[type, str, str]], instead: str) -> Iterator[None]:
    called: list[Wrong] = []

    def forbid(name: str) -> Any:
        wrong = Wrong(f"your function calls {name}. Use {instead} and nothing else.")

        def call(*_: object, **__: object) -> None:
            called.append(wrong)
            raise wrong

        return call

    with ExitStack() as patches:
        for kind, method, name in methods:
            patches.enter_context(patch.object(kind, method, forbid(name)))
        yield
    if called:
        raise called[0]
