"""Arguments of `fully_shard` in the form that units use: comms between ranks, and dtypes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from minidist.comm.comm import Comm, Ours, check_comm

Pair = tuple[Comm, Comm]


class DtypePolicy(NamedTuple):
    """What `torch.distributed.fsdp.MixedPrecisionPolicy` has, whose import takes a second or more.

    Users pass that class; of either one only the fields are read.
    """

    param_dtype: torch.dtype | None = None  # of gathered parameters; None: as they are
    reduce_dtype: torch.dtype | None = None  # in which gradients are averaged; None: as gathered
    output_dtype: torch.dtype | None = None  # of what forward returns; None: as it is
    cast_forward_inputs: bool = True  # the floating-point ones, to param_dtype


def choose_comms(mesh: DeviceMesh | None, comm: Comm | Pair | None) -> list[Comm]:
    """Return the comm between the ranks that share each parameter; then, if any, the replicas'.

    Raises:
        TypeError, ValueError: without the rank.
    """
    if mesh is not None and comm is not None:
        raise ValueError("mesh and comm: expected one of them, got both; a comm has its own group")
    if mesh is not None:
        if mesh.ndim not in (1, 2):
            raise ValueError(
                "mesh: expected one dimension (shard) or two (replicate, shard), got "
                f"{mesh.ndim}: {tuple(mesh.shape)}"
            )
        if mesh.get_coordinate() is None:
            raise ValueError(f"mesh: this rank is not in it, but {mesh.mesh.flatten().tolist()}")
        return [Ours(mesh.get_group(dimension)) for dimension in reversed(range(mesh.ndim))]
    if comm is None:
        return [Ours()]
    for each in comm if isinstance(comm, tuple) else [comm]:
        check_comm("comm", each)
    if not isinstance(comm, tuple):
        return [comm]
    replicate, shard = comm
    replicas, sharers = (dist.get_process_group_ranks(each.group) for each in comm)
    if len(set(replicas) & set(sharers)) != 1:
        raise ValueError(
            "comm: expected a pair (replicate, shard) of groups that share this rank alone, as the "
            f"columns and rows of a mesh do, got ranks {replicas} and {sharers}"
        )
    return [shard, replicate]
