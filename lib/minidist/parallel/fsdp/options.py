"""Arguments of `fully_shard` in the form that units use: comms between ranks, and dtypes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from minidist.comm.comm import Comm, Ours

Pair = tuple[Comm, Comm]


class DtypePolicy(NamedTuple):
    """The fields of `torch.distributed.fsdp.MixedPrecisionPolicy`, and their defaults.

    Users pass that class. Only its fields are read, because importing it takes a second or more.

    Attributes:
        param_dtype: in which parameters are gathered and used; None: as they are.
        reduce_dtype: in which gradients are averaged; None: as the parameters are used.
        output_dtype: to which the floating-point outputs of forward are cast; None: as they are.
        cast_forward_inputs: cast the floating-point inputs of forward to `param_dtype`.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


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


def choose_comms(
    mesh: DeviceMesh | None, comm: Comm | Pair | None, module: nn.Module
) -> tuple[Comm, Comm | None]:
    """Return the comm between the ranks that share each parameter, and that between replicas.

    Args:
        mesh: of one dimension, or of two: (replicate, shard).
        comm: the same as one `Comm`, or as two.
        module: what is to be sharded.

    Raises:
        TypeError, ValueError: without the rank.
    """
    if mesh is not None and comm is not None:
        raise ValueError("mesh and comm: expected one of them, got both; a comm has its own group")
    if mesh is not None:
        return _comms_of_mesh(mesh, module)
    if comm is None:
        return Ours(), None
    if not isinstance(comm, tuple):
        _check_comm("comm", comm)
        return comm, None
    if len(comm) != 2:
        raise ValueError(f"comm: expected one or a pair (replicate, shard), got {len(comm)}")
    for index, each in enumerate(comm):
        _check_comm(f"comm[{index}]", each)
    replicate, shard = comm
    replicas, sharers = (dist.get_process_group_ranks(each.group) for each in comm)
    if len(set(replicas) & set(sharers)) != 1:
        raise ValueError(
            "comm: expected a pair (replicate, shard) of groups that share this rank alone, as the "
            f"columns and rows of a mesh do, got ranks {replicas} and {sharers}"
        )
    return shard, replicate


def _check_comm(argument: str, comm: object) -> None:
    wanted = ("all_gather", "reduce_scatter", "all_reduce", "group", "ranks", "rank")
    if not all(hasattr(comm, name) for name in wanted):
        raise TypeError(f"{argument}: expected a Comm, such as Ours(), got {type(comm).__name__}")


def _comms_of_mesh(mesh: DeviceMesh, module: nn.Module) -> tuple[Comm, Comm | None]:
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh: expected a DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim not in (1, 2):
        raise ValueError(
            "mesh: expected one dimension (shard) or two (replicate, shard), got "
            f"{mesh.ndim}: {tuple(mesh.shape)}"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"mesh: this rank is not in it: it has ranks {mesh.mesh.flatten().tolist()}, the world "
            f"has {dist.get_world_size()}"
        )
    for name, parameter in module.named_parameters() if isinstance(module, nn.Module) else ():
        kind = parameter.device.type
        if kind not in (mesh.device_type, "meta"):
            raise ValueError(
                f"mesh: expected one of {kind}, where parameter '{name}' is, got a mesh of "
                f"{mesh.device_type}"
            )
    groups = [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
    return Ours(groups[-1]), Ours(groups[0]) if mesh.ndim == 2 else None
