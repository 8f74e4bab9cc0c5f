"""torch's own collectives, while a learner's function must do without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from course.graders.verdict import Wrong

# Method of a process group, through which torch's function goes however it was imported → its name.
METHODS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}


@contextmanager
def without_torch(instead: str, allowed: Sequence[str] = ()) -> Iterator[None]:
    """Inside `with`, torch.distributed's collectives raise Wrong; so does the end of the block.

    Args:
        instead: what the exercise is to be solved with, for the message ("`broadcast`").
        allowed: names of torch.distributed's that may be called all the same.

    Raises:
        Wrong: one of them was called, even if the function has caught what that raised.
    """
    called: list[str] = []

    def forbid(name: str) -> Any:
        def call(*_: object, **__: object) -> None:
            called.append(name)
            raise Wrong(_text(name, instead))

        return call

    with ExitStack() as patches:
        for method, name in METHODS.items():
            if name not in allowed and hasattr(dist.ProcessGroup, method):
                patches.enter_context(patch.object(dist.ProcessGroup, method, forbid(name)))
        yield
    if called:
        raise Wrong(_text(called[0], instead))


def _text(name: str, instead: str) -> str:
    return f"your function calls torch.distributed's {name}. Use {instead} and nothing else."
