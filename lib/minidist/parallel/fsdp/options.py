"""Arguments of `fully_shard` in the form that units use: comms between ranks, and dtypes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from minidist.comm.comm import Comm, Ours, check_comm

Pair = tuple[Comm, Comm]


class DtypePolicy(NamedTuple):
    """The fields of `torch.distributed.fsdp.MixedPrecisionPolicy`, and their defaults.

    Users pass that class. Only its fields are read, because importing it takes a second or more.
    """

    param_dtype: torch.dtype | None = None  # of gathered parameters; None: as they are
    reduce_dtype: torch.dtype | None = None  # in which gradients are averaged; None: as gathered
    output_dtype: torch.dtype | None = None  # of what forward returns; None: as it is
    cast_forward_inputs: bool = True  # the floating-point ones, to param_dtype


def dtype_policy(mp_policy: object) -> DtypePolicy:
    """Read what a user has passed; raise TypeError, without the rank, if it is no policy."""
    if mp_policy is None:
        return DtypePolicy()
    if not all(hasattr(mp_policy, field) for field in DtypePolicy._fields):
        raise TypeError(
            "mp_policy: expected a torch.distributed.fsdp.MixedPrecisionPolicy, got "
            f"{type(mp_policy).__name__}"
        )
    found = DtypePolicy(*(getattr(mp_policy, field) for field in DtypePolicy._fields))
    for field, dtype in zip(DtypePolicy._fields[:3], found[:3], strict=True):
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"mp_policy.{field}: expected a floating-point dtype, got {dtype!r}")
    return found


def choose_comms(mesh: DeviceMesh | None, comm: Comm | Pair | None) -> tuple[Comm, Comm | None]:
    """Return the comm between the ranks that share each parameter, and that between replicas.

    Raises:
        TypeError, ValueError: without the rank.
    """
    if mesh is not None and comm is not None:
        raise ValueError("mesh and comm: expected one of them, got both; a comm has its own group")
    if mesh is not None:
        return _comms_of_mesh(mesh)
    if comm is None:
        return Ours(), None
    for each in comm if isinstance(comm, tuple) else [comm]:
        check_comm("comm", each)
    if not isinstance(comm, tuple):
        return comm, None
    if len(comm) != 2:
        raise ValueError(f"comm: expected one or a pair (replicate, shard), got {len(comm)}")
    replicate, shard = comm
    replicas, sharers = (dist.get_process_group_ranks(each.group) for each in comm)
    if len(set(replicas) & set(sharers)) != 1:
        raise ValueError(
            "comm: expected a pair (replicate, shard) of groups that share this rank alone, as the "
            f"columns and rows of a mesh do, got ranks {replicas} and {sharers}"
        )
    return shard, replicate


def _comms_of_mesh(mesh: DeviceMesh) -> tuple[Comm, Comm | None]:
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh: expected a DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim not in (1, 2):
        raise ValueError(
            "mesh: expected one dimension (shard) or two (replicate, shard), got "
            f"{mesh.ndim}: {tuple(mesh.shape)}"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(f"mesh: this rank is not in it, but {mesh.mesh.flatten().tolist()}")
    groups = [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
    return Ours(groups[-1]), Ours(groups[0]) if mesh.ndim == 2 else None
