"""Models that try to break the wrappers: a few parts, and a forward that is a function of them."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import BatchNorm1d, Embedding, Linear, Parameter, Sequential, SiLU, Tanh
from torch.utils.checkpoint import checkpoint

RANKS = 3
Wrap = Callable[[torch.Tensor], Any] | None


class Model(nn.Module):
    """Its forward is a function of the module and of the inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def made(make: Callable[[], nn.Module]) -> Any:
    """The model in float64, with the same weights each time."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


# ---- four layers, and what their output may be wrapped in ----


def layers() -> dict[str, nn.Module]:
    return {"a": Linear(3, 5), "b": Linear(5, 4), "c": Linear(4, 4), "d": Linear(4, 3)}


def net(wrap: Wrap = None) -> nn.Module:
    """The third layer may be left out."""

    def forward(net: Any, x: torch.Tensor, whole: bool = True) -> Any:
        hidden = torch.tanh(net.b(torch.tanh(net.a(x))))
        output = net.d(torch.tanh(net.c(hidden)) if whole else hidden)
        return wrap(output) if wrap else output

    return Model(forward, **layers())


def checkpointed(reentrant: bool, wrap: Wrap = None) -> nn.Module:
    """Activations of three layers are not kept."""

    def forward(net: Any, x: torch.Tensor) -> Any:
        hidden = x.clone().requires_grad_()
        for part in (net.a, net.b, net.c):
            hidden = checkpoint(Sequential(part, Tanh()), hidden, use_reentrant=reentrant)
        return wrap(net.d(hidden)) if wrap else net.d(hidden)

    return Model(forward, **layers())


@dataclass
class Output:
    y: torch.Tensor
    more: torch.Tensor | float = 0.0


def nested() -> nn.Module:
    def wrap(y: torch.Tensor) -> dict[str, Any]:
        listed, integers = [y, (2 * y).sin()], torch.arange(2)
        return {"list": listed, "detached": y.detach(), "none": None, "n": integers}

    return net(wrap)


OUTPUTS: dict[str, Wrap] = {
    "a tensor": None,
    "a dataclass": Output,
    "an object": lambda y: SimpleNamespace(y=y, more=0.0),  # which FSDP does not look into
}


# ---- parameters ----


def odd(dtypes: bool = False, waves: bool = False) -> nn.Module:
    """Parameters without dimensions, without elements, with gaps; strided, half, complex ones."""

    def forward(net: Any, x: torch.Tensor) -> Output:
        outside = {id(p) for part in (net.a, net.b, net.image) for p in part.parameters()}
        mine = [p for p in net.parameters() if id(p) not in outside]
        total = x.mean().exp() * sum((p.abs().double() ** 2).sum() for p in mine)
        pixels = x.new_ones(1, 2, 3, 3) * x.mean()
        return Output(net.b(torch.tanh(net.a(x))), total + net.image(pixels).sum())

    tensors = {
        "number": torch.tensor(2.0),
        "none": torch.randn(0, 3),
        "no_columns": torch.randn(4, 0),
        "gaps": torch.randn(4, 6)[:, :3],
        "turned": torch.randn(4, 3).t(),
    }
    if dtypes:
        tensors["single"] = torch.randn(7, 2, dtype=torch.float32)
        tensors["short"] = torch.ones(5, dtype=torch.float16)
        tensors["brain"] = torch.ones(2, 2, dtype=torch.bfloat16)
    if waves:
        tensors["waves"] = torch.randn(2, 3, dtype=torch.complex64)
    image = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    sizes = nn.ParameterList([torch.randn(n) for n in range(1, RANKS + 3)])
    parts = {name: Parameter(tensor) for name, tensor in tensors.items()}
    return Model(forward, a=Linear(3, 5), b=Linear(5, 3), image=image, sizes=sizes, **parts)


def norms() -> nn.Module:
    """Buffers: running statistics, a mask, one that is not saved."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return (net.b(net.a(x) ** 2 + net.shift) * net.mask) ** 3

    model = Model(forward, a=Sequential(Linear(3, 5), BatchNorm1d(5)), b=BatchNorm1d(5))
    model.register_buffer("mask", torch.tensor([1, 0, 1, 1, 1], dtype=torch.bool))
    model.register_buffer("shift", torch.ones(5), persistent=False)
    return model


# ---- who calls what, and with what ----


def branches() -> nn.Module:
    """A unit that no one calls, one whose output no one uses, one that gets no gradient."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.ignored(x)
        return net.b(torch.tanh(net.a(x))) + net.cut(x).detach()

    names = "a", "b", "unused", "ignored", "cut"
    return Model(forward, **{name: Linear(3, 3) for name in names})


def by_name() -> nn.Module:
    """Inputs by keyword, in containers, and integers; outputs in containers between units."""

    def first(net: Any, *, ids: torch.Tensor, more: dict[str, Any]) -> dict[str, Any]:
        y = net.line(net.table(ids) + more["x"][0])
        return {"y": (y, None), "out": Output(y.sin()), "ids": ids}

    def second(net: Any, found: dict[str, Any], factor: float = 1.0) -> list[torch.Tensor]:
        return [net.line(found["y"][0]) * factor, found["out"].y]

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        found = net.a(ids=torch.arange(len(x)) % 7, more={"x": [x]})
        one, other = net.b(found, factor=0.5)
        return net.last(one * other)

    a, b = Model(first, table=Embedding(7, 3), line=Linear(3, 3)), Model(second, line=Linear(3, 3))
    return Model(forward, a=a, b=b, last=Linear(3, 2))


def passing() -> nn.Module:
    """Units that give back what they were given, beside their own, and take a tensor twice."""

    def both(net: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return net.line(x) * y, x, y[:, :2]

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        new, old, some = net.a(x, x)
        newer, same, _ = net.b(new, new)
        return net.last(newer + same + old) + some.sum()

    a, b = (Model(both, line=Linear(3, 3)) for _ in range(2))
    return Model(forward, a=a, b=b, last=Linear(3, 3))


def two_heads() -> nn.Module:
    """Units with two outputs that have no parameter in common."""

    def forward(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one, two = net.a(x)
        return net.b(torch.tanh(one))[0], net.b(torch.tanh(two))[1]

    def heads() -> nn.Module:
        return Model(lambda net, x: (net.one(x), net.two(x)), one=Linear(3, 3), two=Linear(3, 3))

    return Model(forward, a=heads(), b=heads())


def halves() -> nn.Module:
    """Two, of which each forward uses one."""

    def forward(net: Any, x: torch.Tensor, part: str) -> torch.Tensor:
        return getattr(net, part)(x)

    return Model(forward, a=Linear(3, 4), b=Linear(3, 2))


def in_place() -> nn.Module:
    """Units that write into what they are given, and into what others gave them."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = net.b(net.a(x))
        hidden += 1
        return net.d(net.c(hidden).tanh_())

    activation = SiLU(inplace=True)
    return Model(forward, **layers() | {"b": Sequential(activation, Linear(5, 4), activation)})


# ---- modules that look after their own parameters ----


def attention() -> nn.Module:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = net.a(x)[None]
        return net.b(hidden, hidden, hidden)[0]

    return Model(forward, a=Linear(3, 4), b=nn.MultiheadAttention(4, 2, batch_first=True))


def lstm() -> nn.Module:
    recurrent = nn.LSTM(4, 4, num_layers=2, batch_first=True)
    return Model(lambda net, x: net.b(net.a(x)[None])[0], a=Linear(3, 4), b=recurrent)


def parametrized() -> nn.Module:
    weight_norm = nn.utils.parametrizations.weight_norm(Linear(4, 4))
    return Model(lambda net, x: net.b(net.a(x)), a=Linear(3, 4), b=weight_norm)
