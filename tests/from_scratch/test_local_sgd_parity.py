"""Local SGD and DiLoCo have the weights of one process that plays all ranks, whatever the model."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from from_scratch.local_sgd import DiLoCo, LocalSGD
from minidist import Ours, launch

WIDE, RATE = 4, 0.05


def dense(*kinds: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), *kinds, nn.Linear(WIDE, WIDE))


def frozen(*places: int) -> nn.Sequential:
    net = dense(nn.Linear(WIDE, WIDE))
    for place in places:
        net[place].requires_grad_(False)
    return net


def tied() -> nn.Sequential:
    net = dense()
    net[2].weight = net[0].weight
    return net


class Image(nn.Module):
    """Convolves rows as pictures of 2 by 2; its weights are in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.back = nn.Conv2d(3, 1, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.back(self.conv(x.view(-1, 1, 2, 2)).tanh()).flatten(1)
        return out


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDE, 2 * WIDE).T[:WIDE])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Number(nn.Module):
    """A weight without dimensions, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.empty = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.empty.sum()


class Unused(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "first layer frozen": lambda: frozen(0),
    "only a bias trains": lambda: (net := frozen(0, 2, 3), net[3].bias.requires_grad_())[0],  # type: ignore[union-attr, operator]
    "tied": tied,
    "channels last": lambda: nn.Sequential(Image(), nn.Linear(WIDE, WIDE)),
    "transposed": lambda: dense(Transposed()),
    "a number": lambda: dense(Number()),
    "unused": lambda: dense(Unused(WIDE, WIDE)),
    "batch norm": lambda: dense(nn.BatchNorm1d(WIDE)),
}
# Backward, step and zero_grad; two backwards for a step; an evaluation; a batch that is skipped.
LOOP = "BSZ BBSZ EBSZ BZBSZ BS BSZ"  # six steps
INNER: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda parameters: SGD(parameters, RATE, 0.9),
    "AdamW": lambda parameters: AdamW(parameters, RATE),
}
Case = tuple[str, str, str, int, torch.dtype, bool]  # model, inner, way, every, dtype, autocast
DOUBLE, FLOAT, HALF = torch.float64, torch.float32, torch.bfloat16
WAYS = {"plain": (1.0, 0.0), "DiLoCo": (0.7, 0.9)}
FEW: list[Case] = [
    *(
        ("first layer frozen", "AdamW", way, every, DOUBLE, False)
        for way in WAYS
        for every in (1, 2, 4)
    ),
    ("tied", "SGD", "DiLoCo", 3, DOUBLE, False),
    ("dense", "SGD", "plain", 2, HALF, False),
    ("dense", "AdamW", "DiLoCo", 2, FLOAT, True),
]
MOST: list[Case] = [
    (name, inner, way, 2, DOUBLE, False) for name in MODELS for inner in INNER for way in WAYS
]


def made(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(4)
    return MODELS[name]().to(dtype)


def trained(net: nn.Module) -> list[nn.Parameter]:
    return [each for each in net.parameters() if each.requires_grad]


def run(net: nn.Module, optimizer: Any, rank: int, auto: bool) -> Iterator[int]:
    """A loop over this rank's rows, of which each rank has others and more; yields after steps."""
    for number, action in enumerate(LOOP.replace(" ", "")):
        if action in "BE":
            draw = torch.Generator().manual_seed(9 * number + rank)
            x = torch.randn(2 + rank, WIDE, generator=draw).to(next(net.parameters()).dtype)
            net.train(action == "B")
            with torch.set_grad_enabled(action == "B"), torch.autocast("cpu", HALF, enabled=auto):
                loss = net(x).double().square().mean()
            if action == "B":
                loss.backward()
        elif action == "S":
            optimizer.step()
            yield number
        else:
            optimizer.zero_grad()


def averaged(nets: list[nn.Module], outer: Any, starts: list[Tensor], velocity: list[Any]) -> None:
    """The end of a round, as the papers say it, weight by weight."""
    rate, momentum = outer
    with torch.no_grad():
        for place, weights in enumerate(zip(*map(trained, nets), strict=True)):
            change = starts[place] - torch.stack([each.detach() for each in weights]).mean(0)
            velocity[place] = momentum * velocity[place] + change
            starts[place] = starts[place] - rate * (change + momentum * velocity[place])
            for weight in weights:
                weight.copy_(starts[place])


def off(case: Case) -> str:
    """After which step this rank's weights are not those of one process, if any; it goes on."""
    name, inner, way, every, dtype, auto = case
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, nets = made(name, dtype), [made(name, dtype) for _ in range(ranks)]
    for parameter in net.parameters():
        parameter.data += rank  # rank 0's must win
    comm = Ours(check=False)
    wrap: Any = LocalSGD if way == "plain" else DiLoCo
    optimizer = wrap(INNER[inner](net.parameters()), comm, every)
    alone = [run(each, INNER[inner](each.parameters()), r, auto) for r, each in enumerate(nets)]
    starts, velocity = [each.detach().clone() for each in trained(nets[0])], [0] * len(trained(net))
    first, tolerance = "", 1e-9 if dtype == DOUBLE else 3e-2
    for step, _ in enumerate(zip(run(net, optimizer, rank, auto), *alone, strict=True), 1):
        if step % every == 0:
            averaged(nets, WAYS[way], starts, velocity)
        for (path, weight), right in zip(
            net.named_parameters(), nets[rank].parameters(), strict=True
        ):
            if not torch.allclose(weight, right, tolerance, tolerance):
                far = (weight - right).abs().max()
                first = first or f"{case}: {path} is off by {far:.1e} in step {step}"
    return first


def all_off(cases: list[Case]) -> list[str]:
    torch.set_num_threads(1)
    return [text for case in cases if (text := off(case))]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_weights_are_those_of_one_process_that_plays_all_ranks(ranks: int) -> None:
    cases = FEW + MOST if ranks == 3 else FEW
    assert launch(all_off, ranks, cases, timeout=200) == [[]] * ranks
