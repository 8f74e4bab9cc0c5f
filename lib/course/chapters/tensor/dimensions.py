"""One network split in several ways at once: by batch, by depth, by width, on a mesh of ranks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import mse_loss

import minidist
from from_scratch.ddp import FlatDDP
from from_scratch.pipeline import Pipeline
from from_scratch.tensor import SplitBlock
from minidist.schedule.pipeline import one_f_one_b, sequence

BLOCKS, WIDTH, HIDDEN, SAMPLES, MICRO = 4, 8, 16, 16, 4


class Block(nn.Module):
    """A norm and a feed-forward block around which the input goes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = (
            nn.Linear(n, m, bias=False) for n, m in ((WIDTH, HIDDEN), (HIDDEN, WIDTH))
        )
        self.mlp: nn.Module = nn.Sequential(self.up, nn.GELU(), self.down)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, width] to the same."""
        out: Tensor = x + self.mlp(self.norm(x))
        return out

    def split(self, comm: Any) -> None:
        """Keep this rank's columns and rows."""
        self.mlp = SplitBlock([self.up.weight], nn.GELU(), self.down.weight, comm)
        del self.up, self.down


class Run(NamedTuple):
    """The losses and traffic of one training on a rank."""

    losses: list[float]  #: of each step, of the whole batch
    sent: dict[str, Counter[int]]  #: by dimension, bytes to each rank


def network() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def batch() -> tuple[Tensor, Tensor]:
    """Inputs and targets [samples, width]."""
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SAMPLES, WIDTH, generator=draw) for _ in range(2))
    return x, y


def alone(steps: int) -> list[float]:
    """The losses of one process."""
    net, (x, y) = network(), batch()
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    for _ in range(steps):
        loss = mse_loss(net(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def three_dimensional(steps: int, sizes: Mapping[str, int]) -> Run:
    """On each rank of a mesh "data" × "pipeline" × "tensor": DDP over pipelines of split layers."""
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    net, x, y = split_network(mesh), *(of_replica(each, mesh) for each in batch())
    stages, border = sizes["pipeline"], torch.empty(len(x) // MICRO, WIDTH)
    pipeline = Pipeline(net, stages, border, mesh["pipeline"].get_group())
    own = nn.ModuleList(pipeline.modules.values())
    ddp, optimizer = FlatDDP(own, comm_of(mesh, "data")), torch.optim.SGD(own.parameters(), 0.1)
    works, losses = sequence(one_f_one_b(stages, MICRO)), []
    with sent_on(mesh) as sent:
        for _ in range(steps):
            loss = pipeline.step(works, x, y, mse_loss)  # the last stage has it
            ddp.synchronize()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mean(0.0 if loss is None else stages * loss.item()))
    return Run(losses, sent)


def split_network(mesh: DeviceMesh) -> nn.Sequential:
    """With this rank's part of each layer."""
    net, comm = network(), comm_of(mesh, "tensor")
    for block in net:
        assert isinstance(block, Block)
        block.split(comm)
    return net


def of_replica(full: Tensor, mesh: DeviceMesh) -> Tensor:
    """This replica's samples."""
    return full.chunk(mesh["data"].size())[mesh["data"].get_local_rank()]


def mean(loss: float) -> float:
    """Over all ranks."""
    box = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(box)
    return box.item() / dist.get_world_size()


def comm_of(mesh: DeviceMesh, dimension: str) -> minidist.Ours:
    """Collectives between the ranks that differ in one dimension alone."""
    return minidist.Ours(mesh[dimension].get_group(), algorithm="ring", check=False)


@contextmanager
def sent_on(mesh: DeviceMesh) -> Iterator[dict[str, Counter[int]]]:
    """Within it, the bytes that this rank sends in each dimension, by the rank that they go to."""
    names = {mesh[name].get_group().group_name: name for name in mesh.mesh_dim_names or ()}
    sent: dict[str, Counter[int]] = {name: Counter() for name in names.values()}
    send = dist.ProcessGroup.send

    def noted(group: Any, tensors: list[Tensor], peer: int, *args: Any) -> Any:
        if name := names.get(group.group_name):
            to = dist.get_global_rank(group, peer)
            sent[name][to] += sum(tensor.nbytes for tensor in tensors)
        return send(group, tensors, peer, *args)

    with patch.object(dist.ProcessGroup, "send", noted):
        yield sent
