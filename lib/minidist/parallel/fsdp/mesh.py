"""Between which ranks a unit is sharded, and between which its shards are replicated."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from minidist.comm.comm import Comm, Ours

Pair = tuple[Comm, Comm]


def choose_comms(
    mesh: DeviceMesh | None, comm: Comm | Pair | None, module: nn.Module
) -> tuple[Comm, Comm | None]:
    """The comm between the ranks that share a parameter; that between replicas, or None.

    Args:
        mesh: of one dimension, or of two: replicas, and the ranks that share.
        comm: the same as one `Comm`, or two.
        module: what is to be sharded.

    Raises:
        TypeError, ValueError: with this rank's number. There are no ranks yet that can be told.
    """
    try:
        return _choose(mesh, comm, module)
    except (TypeError, ValueError) as error:
        raise type(error)(f"rank {dist.get_rank()}: fully_shard: {error}") from None


def _choose(
    mesh: DeviceMesh | None, comm: Comm | Pair | None, module: nn.Module
) -> tuple[Comm, Comm | None]:
    if mesh is not None and comm is not None:
        raise ValueError("mesh and comm: expected one of them, got both; a comm has its own group")
    if mesh is not None:
        return _of_mesh(mesh, module)
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
    return shard, replicate


def _check_comm(argument: str, comm: object) -> None:
    if not all(hasattr(comm, name) for name in ("all_gather", "reduce_scatter", "ranks", "rank")):
        raise TypeError(f"{argument}: expected a Comm, such as Ours(), got {type(comm).__name__}")


def _of_mesh(mesh: DeviceMesh, module: nn.Module) -> tuple[Comm, Comm | None]:
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
