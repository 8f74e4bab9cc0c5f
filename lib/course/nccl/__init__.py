"""NCCL's rules on a CPU: what would hang on GPUs hangs here too, and says who waits for whom.

The calls of torch.distributed keep these rules, which Gloo does not ask for:

- The first unbatched send or receive between two ranks blocks the host until the other one makes
  its own. Calls between the two then run one after the other, and a send ends only with its
  receive: ranks that both send first wait forever. `batch_isend_irecv` has no such order.
- A group's collectives and batches run in the order of the calls, so it must be the same on all
  ranks, from hooks and threads too. A group is made by all ranks, also by those outside.
- A tensor on the CPU is refused, and so is one that is not contiguous.
- `wait()` orders the kernels that follow, and does not finish the work; a kernel that uses the
  result without it is an error here. `get_future()` is done at once. `barrier()` blocks the host.

What it cannot emulate: NCCL's buffers, so that small messages end before they are received; one
communicator for all messages between two ranks, as with `device_id`; kernels on several streams;
a send buffer that is overwritten too early; memory, speed, and errors of the GPU itself; tensors
that C++ makes, which it takes for the GPU's. A call whose input is still on its way blocks the
host. A deadlock is seen where all threads of all ranks wait in Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore  # exported by torch.distributed, but not typed
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

import minidist
from course.nccl.gpu import gpus
from course.nccl.group import Group, no_result
from course.nccl.line import Line, serve

KEY = "nccl's rules"  # its value in the default group's store: the switchboard's address
BOTH = "cpu:gloo,cuda:nccl"


class _Torch:
    """Stand-ins for functions of torch.distributed."""

    def __init__(self) -> None:
        self.wanted = BOTH  # backend, as the caller named it
        self.line: Line | None = None
        self.close: Callable[[], object] = list  # waits for the end of the ranks that we serve
        self._initialize, self._new_group = dist.init_process_group, dist.new_group
        self._batch = dist.batch_isend_irecv

    def create(self, options: Any, _: Any) -> Group:
        """A group of the backend "emulated"; the first one finds the switchboard."""
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        if self.line is None:
            if options.group_rank == 0:
                address, self.close = serve(options.group_size)
                options.store.set(KEY, address)
            self.line = Line(options.store.get(KEY).decode(), options.group_rank)
        gloo = _gloo(options) if "gloo" in self.wanted else None
        return Group(options.group_rank, ranks, options.group_id, self.line, gloo)

    def _as_asked(self, group: Any) -> Any:
        if isinstance(group, Group):
            c10d._world.pg_backend_config[group] = self.wanted
            c10d._world.pg_map[group] = "nccl", c10d._world.pg_map[group][1]
        return group

    def init_process_group(self, backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if "nccl" not in (backend or BOTH):
            self._initialize(backend, *args, **kwargs)
            return
        self.wanted = backend or BOTH
        kwargs.pop("device_id", None)
        self._initialize("emulated", *args, **kwargs)
        self._as_asked(c10d._get_default_group())

    def new_group(
        self, ranks: Any = None, timeout: Any = None, backend: str | None = None, **kwargs: Any
    ) -> Any:
        if self.line is not None:
            name = f"new_group({'all' if ranks is None else sorted(ranks)})"
            everyone = range(dist.get_world_size())
            self.line.post(no_result, "groups", name, ranks=everyone, sign=name).wait()
            backend = backend if backend and "nccl" not in backend else "emulated"
        return self._as_asked(self._new_group(ranks, timeout, backend, **kwargs))

    def batch_isend_irecv(self, ops: list[dist.P2POp]) -> list[dist.Work]:
        group = ops[0].group or c10d._get_default_group()
        return group.batch(ops) if isinstance(group, Group) else self._batch(ops)


@contextmanager
def rules(count: int) -> Iterator[None]:
    """Let this process see `count` GPUs, and groups of the backend "nccl" keep NCCL's rules."""
    ours = _Torch()
    if not hasattr(dist.Backend, "EMULATED"):
        dist.Backend.register_backend("emulated", None, extended_api=True, devices=["cpu", "cuda"])
    plugin = dist.Backend._plugins["EMULATED"]._replace(creator_fn=ours.create)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(dist.Backend._plugins, EMULATED=plugin))
        for name in ("init_process_group", "new_group", "batch_isend_irecv"):
            for module in (dist, c10d, device_mesh):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, getattr(ours, name)))
        stack.enter_context(gpus(count))
        try:
            yield
        finally:
            if ours.line is not None:
                with suppress(OSError):  # rank 0 has died
                    ours.line.send("end")
        ours.close()  # others may still talk to each other


def _gloo(options: Any) -> dist.ProcessGroup:
    """The Gloo part of a group, for tensors on the CPU."""
    place = options.store, options.group_rank, options.group_size
    group, kind = dist.ProcessGroup(*place), dist.ProcessGroup.BackendType.GLOO
    group._register_backend(
        torch.device("cpu"), kind, dist.ProcessGroupGloo(*place, timeout=options.timeout)
    )
    group._set_default_backend(kind)
    return group


def on_nccl(
    function: Callable[..., Any], ranks: int, *args: object, timeout: float = 60.0
) -> list[Any]:
    """As minidist.launch, on an emulated GPU for each rank, over an emulated NCCL.

    Raises RankError, whose cause is Deadlock for ranks that would wait forever.
    """
    with TemporaryDirectory(prefix="nccl-") as folder:
        return minidist.launch(
            _on_rank, ranks, function, args, folder, device="cpu", timeout=timeout
        )


def _on_rank(function: Callable[..., Any], args: tuple[object, ...], folder: str) -> Any:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    os.environ["MINIDIST_DEVICE"] = f"cuda:{rank}"
    with rules(ranks):
        torch.cuda.set_device(rank)
        store = FileStore(f"{folder}/store", ranks)
        dist.init_process_group(BOTH, store=store, rank=rank, world_size=ranks)
        return function(*args)
