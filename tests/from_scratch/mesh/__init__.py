"""The newer lessons on a mesh, each in a group of its own: they train as one process does.

Ranks form a grid of replicas and, in each, ranks that share the model or the tokens. Replicas have
their part of a batch. What is compared are losses, which show what weights have become.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy, gelu, linear
from torch.optim import SGD

import minidist
from from_scratch.ddp import BucketedDDP, FlatDDP, OverlappedDDP, PerParameterDDP
from from_scratch.tensor import SplitBlock, all_reduce, attend
from from_scratch.zero import ZeRO1, ZeRO2
from minidist import Ours
from minidist.schedule.pipeline import Order, gpipe, interleaved, one_f_one_b

LAYERS, SAMPLES, TOKENS, WIDE, HEAD = 8, 32, 8, 8, 2
RATE, CAP = 0.1, 1e-4  # a bucket holds few layers
HOW: dict[str, Any] = {"lr": RATE, "momentum": 0.9, "weight_decay": 0.01}
DOUBLE, FLOAT, HALF = torch.float64, torch.float32, torch.bfloat16
GRIDS = [(2, 2), (4, 1), (1, 4)]  # replicas, ranks in each


class Grid(NamedTuple):
    """This rank's place, and the groups of its column and of its row.

    Attributes:
        data: the ranks that do the same in every replica.
        inner: the ranks of this replica.
    """

    replica: int
    replicas: int
    rank: int
    ranks: int
    data: Ours
    inner: Ours


def grid(shape: tuple[int, int]) -> Grid:
    """Ranks of a replica are not neighbors: 0 and 2, 1 and 3."""
    mesh = init_device_mesh("cpu", shape[::-1], mesh_dim_names=("inner", "data"))
    data, inner = (Ours(mesh.get_group(name), check=False) for name in ("data", "inner"))
    return Grid(data.rank, data.ranks, inner.rank, inner.ranks, data, inner)


# Of test_parity: backward, step, zero_grad, evaluation; and a replica that is lost and comes back.
LOOP = "BEBSZ BZ BS EBSZ B"


class Trained(NamedTuple):
    """A side of a comparison.

    Attributes:
        backward: of inputs and labels; returns their mean loss, or None where another rank has it.
        optimizer: what steps; None if nothing here is trained.
        synchronize: between backward and step.
        forward: without gradients, before a step.
        rejoin: between two rounds.
    """

    backward: Callable[[Tensor, Tensor], Any]
    optimizer: Any
    synchronize: Callable[[], object] = int
    forward: Callable[[Tensor], object] = id
    rejoin: Callable[[], object] = int
    loop: str = LOOP


def batches(
    side: Trained, loop: str, replica: int, replicas: int, dtype: torch.dtype
) -> Iterator[Any]:
    """The losses of a loop over a replica's part of the batches."""
    for number, action in enumerate(loop.replace(" ", "")):
        draw = torch.Generator().manual_seed(number)
        x, y = (
            each.chunk(replicas)[replica]
            for each in torch.randn(2, SAMPLES, TOKENS, WIDE, generator=draw).to(dtype)
        )
        if action == "B":
            yield side.backward(x, y)
            side.synchronize()
        elif action == "E":
            with torch.no_grad():
                side.forward(x)
        elif action == "J":
            side.rejoin()
        elif side.optimizer:
            side.optimizer.step() if action == "S" else side.optimizer.zero_grad()


def off(own: Trained, alone: Trained, at: Grid, dtype: torch.dtype, tolerance: float) -> str:
    """The first loss of all ranks together that is not that of one process."""
    mine = batches(own, own.loop, at.replica, at.replicas, dtype)
    right = batches(alone, own.loop, 0, 1, dtype)
    for number, (loss, whole) in enumerate(zip(mine, right, strict=True)):
        both = torch.tensor([0.0, 0.0] if loss is None else [loss.item(), 1.0]).double()
        if loss is not None:
            both[0] = loss.detach().double()
        dist.all_reduce(both)
        mean = both[0] / both[1]
        if not torch.allclose(mean, whole.detach().double(), tolerance, tolerance):
            return f"loss {number}: {mean.item()}, not {whole.item()}"
    return ""


def sgd(parameters: Any) -> Any:
    parameters = list(parameters)
    return SGD(parameters, **HOW) if parameters else None


def torch_side(net: nn.Module, loss_of: Callable[..., Tensor], auto: bool = False) -> Trained:
    def backward(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", HALF, enabled=auto):
            loss = loss_of(net(x), y)
        loss.backward()
        return loss.detach()

    return Trained(backward, sgd(net.parameters()), forward=net)


# ---- ways to be parallel between replicas ----

Wrapped = tuple[Any, Callable[[], object]]  # optimizer, synchronize


def lesson_ddp(kind: Any, parts: nn.ModuleList, comm: Ours, *cap: float) -> Wrapped:
    return sgd(parts.parameters()), kind(parts, comm, *cap).synchronize


def lesson_zero(kind: Any, parts: nn.ModuleList, comm: Ours) -> Wrapped:
    return kind(parts.parameters(), SGD, comm, CAP, **HOW), int


def fully_sharded(reshard: bool, parts: nn.ModuleList, comm: Ours) -> Wrapped:
    for part in parts:
        minidist.fully_shard(part, comm=comm, reshard_after_forward=reshard)
    return sgd(parts.parameters()), int


def zero(stage: int, parts: nn.ModuleList, comm: Ours) -> Wrapped:
    local = {"comm": comm, "gradients": "local"}
    return minidist.ZeroOptimizer(parts.parameters(), SGD, stage=stage, **local, **HOW), int


WAYS: dict[str, Callable[[nn.ModuleList, Ours], Wrapped]] = {
    "per parameter": partial(lesson_ddp, PerParameterDDP),
    "flat": partial(lesson_ddp, FlatDDP),
    "bucketed": lambda parts, comm: lesson_ddp(BucketedDDP, parts, comm, CAP),
    "overlapped": lambda parts, comm: lesson_ddp(OverlappedDDP, parts, comm, CAP),
    "ZeRO-1": partial(lesson_zero, ZeRO1),
    "ZeRO-2": partial(lesson_zero, ZeRO2),
    "fully_shard": partial(fully_sharded, True),
    "fully_shard, kept": partial(fully_sharded, False),
    "ZeroOptimizer 1": partial(zero, 1),
    "ZeroOptimizer 2": partial(zero, 2),
}


def loop_of(way: str) -> str:
    """`ZeroOptimizer` does not add a step's gradients to those of the one before."""
    return LOOP.replace("BS ", "BSZ ") if "Optimizer" in way else LOOP


# ---- models ----


class Layer(nn.Linear):
    """Residual, so that neither activations nor gradients fade on their way."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x).tanh() / 4


def layers(frozen: Any = (), tied: Any = (), empty: Any = ()) -> nn.Sequential:
    net = nn.Sequential(*(Layer(WIDE, WIDE) for _ in range(LAYERS)))
    for place in frozen:
        net[place].requires_grad_(False)
    for place in tied:
        net[place].weight = net[tied[0]].weight
    for place in empty:
        net[place] = nn.Identity()
    return net


ORDERS: dict[str, Callable[[int], Order]] = {
    "GPipe": lambda ranks: gpipe(ranks, 4),
    "1F1B": lambda ranks: one_f_one_b(ranks, 4),
    "one": lambda ranks: one_f_one_b(ranks, 1),
    "interleaved": lambda ranks: interleaved(ranks, 2 * ranks, 2),
}


def some_ignored(y: Tensor) -> Tensor:
    """Of each eight samples five and a half, so that replicas have equally many labels."""
    place = torch.arange(len(y))[:, None] % 8 + torch.arange(TOKENS) / TOKENS
    return y.argmax(-1).where(place < 2.5, -100)


def classes(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out.flatten(0, 1), y.flatten())


class Whole(nn.Module):
    """What SplitBlock is in one process."""

    def __init__(self, columns: Any, inner: Any, rows: Tensor) -> None:
        super().__init__()
        self.columns, self.inner, self.rows = nn.ParameterList(columns), inner, rows

    def forward(self, x: Tensor) -> Any:
        return linear(self.inner(*[linear(x, each) for each in self.columns]), self.rows)


class Half(nn.Module):
    """Half of a layer: a norm and a block, for which tokens come first."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.norm, self.block = nn.LayerNorm(WIDE), block

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(self.norm(x).transpose(0, 1)).transpose(0, 1)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[1] ** 0.5)


def halves(make: Callable[..., nn.Module], model: str, count: int) -> nn.Sequential:
    """Attention and feed forward by turns, from one seed."""
    torch.manual_seed(6)
    net = nn.Sequential()
    for place in range(count):
        if place % 2:
            columns, inner = [weight(4 * WIDE, WIDE)], gelu
        else:
            columns, inner = [weight(WIDE, WIDE) for _ in range(3)], partial(attend, HEAD)
            if model == "tied":
                columns[1] = columns[0]
        rows = weight(WIDE, columns[0].shape[0])
        if model == "frozen":
            columns[0].requires_grad_(place > 1)
            rows.requires_grad_(place != 2)
        net.append(Half(make(columns, inner, rows)))
    if model == "a block twice":
        net[2].block = net[0].block
    if model == "norms tied":
        net[1].norm = net[0].norm
    return net


def split_halves(model: str, count: int, comm: Ours, by_tokens: bool = False) -> nn.Sequential:
    """Norms that see a part of the tokens get all ranks' gradients."""
    net = halves(partial(SplitBlock, comm=comm, sequence=by_tokens), model, count)
    norms = [each for each in net.modules() if isinstance(each, nn.LayerNorm)]
    for parameter in nn.ModuleList(norms).parameters() if by_tokens else []:
        parameter.register_hook(partial(all_reduce, comm=comm))
    return net


def all_off(run: Callable[[Any, Grid], str], few: list[Any], most: list[Any]) -> dict[str, str]:
    """What is wrong with which case; most of them run on two replicas of two ranks alone."""
    torch.set_num_threads(1)
    found = {}
    for shape in GRIDS:
        place = grid(shape)
        for case in few + most * (shape == (2, 2)):
            found[f"{shape}, {case}"] = run(case, place)
    return {name: text for name, text in found.items() if text}
