"""Models and training loops that try to break DDP, ZeRO and FSDP, and how it shows when one does.

An attack is what one rank does in one step, written so that it works on a wrapped model and on bare
ones alike. Every rank trains the wrapped one together with the others, and, alone, one bare model
for each rank. Gradients must be the mean of the bare ones', weights those that this mean leads to.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

import minidist
from minidist.comm.comm import Comm, Ours
from tests.proof.cases import Unsynchronised

RANKS = 3
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"sync": "overlapped"},
    "ddp, views": {"sync": "overlapped", "gradient_as_bucket_view": True},
    "ddp, flat, views": {"sync": "flat", "gradient_as_bucket_view": True},
    "zero 1 on ddp": {"stage": 1},
    "zero 1": {"stage": 1, "gradients": "local"},
    "zero 2": {"stage": 2},
    "dim0": {"layout": "dim0"},
    "flat": {"layout": "flat"},
    "dim0, kept": {"layout": "dim0", "reshard_after_forward": False},
    "flat, kept, no prefetch": {
        "layout": "flat",
        "reshard_after_forward": False,
        "prefetch": False,
    },
    "flat, no prefetch": {"layout": "flat", "prefetch": False},
}
DDP, ZERO, FSDP = list(WAYS)[:3], list(WAYS)[3:6], list(WAYS)[6:]
FORGET = ["zero 1", "zero 2"]  # after a step, the gradients; others keep them until zero_grad
NOT_DDP = [*FORGET, *FSDP]
SMALL = 1e-4  # MiB of a bucket: each holds about a parameter

Gradients = dict[str, torch.Tensor | None]
MOMENTUM = partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


@dataclass
class Live:
    """A model in training, wrapped or bare."""

    model: nn.Module
    drop: Callable[[bool], None]  # zero_grad, the optimizer's or the module's
    quiet: Callable[[], AbstractContextManager[Any]] = nullcontext


Step = Callable[[Live, int, int], object]


def mean_loss(live: Live, rank: int, turn: int) -> None:
    loss(live.model(batch(rank, turn))).backward()


@dataclass(frozen=True)
class Attack:
    """`parts`: of the bare model, those that FSDP wraps before the whole, inner ones first."""

    make: Callable[[], nn.Module]
    step: Step = mean_loss
    parts: Callable[[nn.Module], list[nn.Module]] = lambda net: [net.a, net.b]
    root: bool = True  # FSDP wraps the whole too
    zero: bool = True  # gradients before each step
    to_none: bool = True  # if so
    find: bool = False  # DDP looks for unused parameters
    ways: Sequence[str] = tuple(WAYS)
    turns: int = 3
    optimizer: "partial[Optimizer]" = MOMENTUM


def batch(rank: int, turn: int = 0, width: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + turn)
    return torch.randn(2, width, dtype=torch.float64, generator=generator)


def loss(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.square().mean()
    more = getattr(output, "more", None)
    return output.y.square().mean() + (0 if more is None else more)


# ---- models ----


class Net(nn.Module):
    """Four layers; the third may be left out, the output may be wrapped in something."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 4)
        self.d = nn.Linear(4, 3)
        self.double()
        self.wrap = wrap

    def forward(self, inputs: torch.Tensor, whole: bool = True) -> Any:
        hidden = torch.tanh(self.b(torch.tanh(self.a(inputs))))
        output = self.d(torch.tanh(self.c(hidden)) if whole else hidden)
        return self.wrap(output) if self.wrap else output


@dataclass
class Output:
    y: torch.Tensor
    more: torch.Tensor | None = None


def nested(y: torch.Tensor) -> dict[str, Any]:
    return {"list": [y, (2 * y).sin()], "detached": y.detach(), "none": None, "n": torch.arange(2)}


class Checkpointed(Net):
    """Activations of two layers are not kept."""

    def __init__(self, reentrant: bool, wrap: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__(wrap)
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor, whole: bool = True) -> Any:
        hidden = inputs.clone().requires_grad_()
        for layer in (self.a, self.b, self.c):
            hidden = checkpoint(
                lambda x, layer=layer: torch.tanh(layer(x)), hidden, use_reentrant=self.reentrant
            )
        return self.wrap(self.d(hidden)) if self.wrap else self.d(hidden)


class Tied(nn.Module):
    """One matrix under two names, one that is used twice, and a bias that is two layers'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 5).double(), Pair()
        self.turned = nn.Linear(5, 3, bias=False).double()
        self.again = nn.Linear(5, 3, bias=False).double()
        self.again.weight = self.turned.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.b(torch.tanh(self.a(x)))
        return self.turned(hidden) + self.again(hidden.sin()) + self.turned(hidden.cos())


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5).double(), nn.Linear(5, 5).double()
        self.two.bias = self.one.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


class Frozen(Net):
    """A unit that is frozen, one of which a part is, and a frozen bias in the root."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        (self.a if first else self.b).requires_grad_(False)
        (self.b if first else self.a).bias.requires_grad_(False)
        self.d.bias.requires_grad_(False)


class Twice(Net):
    """A unit that is called twice in one forward, and, if it is one, a part of it once more."""

    def __init__(self, part: bool) -> None:
        super().__init__()
        self.b = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)).double()
        self.part = part

    def forward(self, x: torch.Tensor, whole: bool = True) -> torch.Tensor:
        hidden = self.b(self.b(self.a(x)).sin())
        return hidden + self.b[0](hidden) if self.part else hidden


class Norms(nn.Module):
    """Buffers: running statistics, a mask, one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).double()
        self.b = nn.BatchNorm1d(5).double()
        self.register_buffer("mask", torch.tensor([1, 0, 1, 1, 1], dtype=torch.bool))
        self.register_buffer("shift", torch.ones(5, dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.b(self.a(x) ** 2 + self.shift) * self.mask) ** 3


class Odd(nn.Module):
    """Parameters without dimensions, without elements, with gaps; strided, half, complex ones."""

    def __init__(self, dtypes: bool = False, waves: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        double = partial(torch.randn, dtype=torch.float64)
        self.a, self.b = nn.Linear(3, 5).double(), nn.Linear(5, 3).double()
        self.number = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.none = nn.Parameter(double(0, 3))
        self.no_columns = nn.Parameter(double(4, 0))
        self.gaps = nn.Parameter(double(4, 6)[:, :3])
        self.turned = nn.Parameter(double(4, 3).t())
        self.image = nn.Conv2d(2, 3, 2).double().to(memory_format=torch.channels_last)
        self.sizes = nn.ParameterList([double(n) for n in range(1, RANKS + 3)])
        if dtypes:
            self.single = nn.Parameter(torch.randn(7, 2))
            self.short = nn.Parameter(torch.ones(5, dtype=torch.float16))
            self.brain = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
        if waves:
            self.waves = nn.Parameter(torch.randn(2, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> Output:
        outside = {id(p) for part in (self.a, self.b, self.image) for p in part.parameters()}
        mine = [p for p in self.parameters() if id(p) not in outside]
        total = x.mean().exp() * sum((p.abs().double() ** 2).sum() for p in mine)
        pixels = x.new_ones(1, 2, 3, 3) * x.mean()
        return Output(self.b(torch.tanh(self.a(x))), total + self.image(pixels).sum())


class ByName(nn.Module):
    """Inputs by keyword, in containers, and integers; outputs in containers between units."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.line = nn.Embedding(7, 3), nn.Linear(3, 3)

        def forward(self, *, ids: torch.Tensor, more: dict[str, Any]) -> dict[str, Any]:
            y = self.line(self.table(ids) + more["x"][0])
            return {"y": (y, None), "out": Output(y.sin()), "ids": ids}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 3)

        def forward(self, found: dict[str, Any], factor: float = 1.0) -> list[torch.Tensor]:
            return [self.line(found["y"][0]) * factor, found["out"].y]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = self.Inner().double(), self.Outer().double()
        self.last = nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(len(x)) % 7
        first, second = self.b(self.a(ids=ids, more={"x": [x]}), factor=0.5)
        return self.last(first * second)


class Branches(nn.Module):
    """A unit that no one calls, one whose output no one uses, one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(3, 3).double() for _ in range(5)]
        self.a, self.b, self.unused, self.ignored, self.cut = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ignored(x)
        return self.b(torch.tanh(self.a(x))) + self.cut(x).detach()


class Recurrent(nn.Module):
    """Modules that look after their own parameters: an LSTM, attention, a parametrization."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.a = nn.Linear(3, 4).double()
        if kind == "attention":
            self.b = nn.MultiheadAttention(4, 2, batch_first=True).double()
        elif kind == "lstm":
            self.b = nn.LSTM(4, 4, num_layers=2, batch_first=True).double()
        else:
            self.b = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.a(x)[None]
        if self.kind == "attention":
            return self.b(hidden, hidden, hidden)[0]
        found = self.b(hidden)
        return found[0] if self.kind == "lstm" else found


class InPlace(Net):
    """Units that write into what they are given, and into what others gave them."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Sequential(nn.SiLU(inplace=True), nn.Linear(5, 4), nn.SiLU(inplace=True))
        self.b.double()

    def forward(self, x: torch.Tensor, whole: bool = True) -> torch.Tensor:
        hidden = self.b(self.a(x))
        hidden += 1
        return self.d(self.c(hidden).tanh_())


class Passing(nn.Module):
    """A unit that gives back what it was given, beside its own, and takes a tensor twice."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.line(x) * y, x, y[:, :2]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = self.Both().double(), self.Both().double()
        self.last = nn.Linear(3, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new, old, some = self.a(x, x)
        newer, same, _ = self.b(new, new)
        return self.last(newer + same + old) + some.sum()


class TwoHeads(nn.Module):
    """A unit with two outputs that have no parameter in common."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.one(x), self.two(x)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = self.Heads().double(), self.Heads().double()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one, two = self.a(x)
        return self.b(torch.tanh(one))[0], self.b(torch.tanh(two))[1]


class MinusZero(Net):
    """Gradients that are there and are -0.0, which must not be taken for none."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.sometimes = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor, whole: bool = True) -> Output:
        used = [self.always, self.sometimes] if whole else [self.always]
        return Output(super().forward(inputs), sum((each * -0.0).sum() for each in used))


class InOtherOrder(nn.Module):
    """Each rank uses the layers in its own order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        for turn in range(3):
            inputs = torch.tanh(self.layers[(turn + rank) % 3](inputs))
        return inputs


class NoGradient(torch.autograd.Function):
    """Multiplies by a weight, for which its backward returns None."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return inputs * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.saved_tensors[0], None


class Undefined(Net):
    """A weight that autograd reaches, and that gets no gradient; on rank 0 alone it gets one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor, rank: int) -> torch.Tensor:
        inputs = NoGradient.apply(inputs, self.scale) if rank else inputs * self.scale
        return super().forward(inputs)


class Inside(nn.Module):
    """Calls a net twice, among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(self.net(inputs).relu() + inputs)


# ---- steps ----


def retained(live: Live, rank: int, turn: int) -> None:
    value = loss(live.model(batch(rank, turn)))
    value.backward(retain_graph=True)
    value.backward()


def two_and_two(live: Live, rank: int, turn: int) -> None:
    first, second = live.model(batch(rank, turn)), live.model(batch(rank, turn + 50))
    for output in (first, second) if turn % 2 else (second, first):
        loss(output).backward()


def two_in_one(live: Live, rank: int, turn: int) -> None:
    first, second = live.model(batch(rank, turn)), live.model(batch(rank, turn + 50))
    (loss(first) + 2 * loss(second)).backward()


def accumulated(live: Live, rank: int, turn: int) -> None:
    for micro in range(3):
        loss(live.model(batch(rank, turn + 10 * micro))).backward()


def quietly(live: Live, rank: int, turn: int) -> None:
    for micro in range(3):
        with live.quiet() if micro < 2 else nullcontext():
            loss(live.model(batch(rank, turn + 10 * micro))).backward()


def loud_and_quiet(live: Live, rank: int, turn: int) -> None:
    for micro in range(4):
        with live.quiet() if micro % 2 == 0 else nullcontext():
            loss(live.model(batch(rank, turn + 10 * micro))).backward()


def one_of_two_quiet(quiet_first: bool) -> Step:
    def step(live: Live, rank: int, turn: int) -> None:
        with live.quiet() if quiet_first else nullcontext():
            first = live.model(batch(rank, turn))
        with nullcontext() if quiet_first else live.quiet():
            second = live.model(batch(rank, turn + 50))
        (loss(first) + loss(second)).backward()

    return step


def used_only_quietly(live: Live, rank: int, turn: int) -> None:
    with live.quiet():
        loss(live.model(batch(rank, turn))).backward()
    loss(live.model(batch(rank, turn + 50), whole=False)).backward()


def asks_alone(live: Live, rank: int, turn: int) -> None:
    inputs = batch(rank, turn).requires_grad_()
    value = loss(live.model(inputs))
    if rank == 0:
        torch.autograd.grad(value, inputs, retain_graph=True)
    value.backward()


def loss_around_it(live: Live, rank: int, turn: int) -> None:
    decay = sum(p.square().sum() for p in live.model.parameters())
    (loss(live.model(batch(rank, turn))) + (rank + 1) * decay).backward()


def graph_of_gradients(live: Live, rank: int, turn: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a cycle, which is cut below
        loss(live.model(batch(rank, turn))).backward(create_graph=True)
    for parameter in live.model.parameters():
        parameter.grad = parameter.grad.detach().clone()


def checkpointed(live: Live, rank: int, turn: int) -> None:
    """The model runs again within backward, also in no_sync."""
    with live.quiet():
        loss(checkpoint(live.model, batch(rank, turn), use_reentrant=False)).backward()
    hidden = checkpoint(live.model, batch(rank, turn + 50), use_reentrant=False)
    loss(checkpoint(live.model, hidden, use_reentrant=False)).backward()


def with_rank(live: Live, rank: int, turn: int) -> None:
    loss(live.model(batch(rank, turn), rank)).backward()


def by_rank(live: Live, rank: int, turn: int) -> None:
    loss(live.model(batch(rank, turn), whole=(rank + turn) % 2 == 0)).backward()


def by_turn(live: Live, rank: int, turn: int) -> None:
    loss(live.model(batch(rank, turn), whole=turn % 2 == 0)).backward()


def part_of_nested(live: Live, rank: int, turn: int) -> None:
    output = live.model(batch(rank, turn))
    (output["list"][turn % 2].square().mean() + output["detached"].sum()).backward()


def changed_in_place(live: Live, rank: int, turn: int) -> None:
    for context in (live.quiet(), nullcontext()):
        with context:
            output = live.model(batch(rank, turn))
            output.mul_(2)
            output[0].add_(1)
            loss(output).backward()


def hooked(live: Live, rank: int, turn: int) -> None:
    output = live.model(batch(rank, turn))
    output.retain_grad()
    output.register_hook(lambda gradient: 3 * gradient)
    loss(output).backward()
    assert output.grad is not None


def with_inputs(live: Live, rank: int, turn: int) -> None:
    inputs = batch(rank, turn).requires_grad_()
    loss(live.model(inputs)).backward()
    assert inputs.grad is not None
    assert inputs.grad.any()


def on_its_own_output(live: Live, rank: int, turn: int) -> None:
    loss(live.model(live.model(batch(rank, turn)))).backward()


def looks_between(live: Live, rank: int, turn: int) -> None:
    model = live.model
    value = loss(model(batch(rank, turn)))
    with torch.no_grad():
        model.eval()(batch(rank, 90))
    value.backward()
    with torch.inference_mode():
        model(batch(rank, 91))
    loss(model.train()(batch(rank, turn + 50))).backward()
    loss(model.eval()(batch(rank, turn + 60))).backward()
    model.train()
    with torch.no_grad():
        model(batch(rank, 92))


def never_backward(live: Live, rank: int, turn: int) -> None:
    live.model(batch(rank, turn + 40))
    loss(live.model(batch(rank, turn))).backward()
    live.model(batch(rank, turn + 60))


def none_between(live: Live, rank: int, turn: int) -> None:
    with live.quiet() if turn else nullcontext():
        loss(live.model(batch(rank, turn))).backward()
    live.drop(turn % 2 == 0)
    loss(live.model(batch(rank, turn + 50))).backward()


def in_a_thread(live: Live, rank: int, turn: int) -> None:
    thread = threading.Thread(target=lambda: mean_loss(live, rank, turn))
    thread.start()
    thread.join()


def penalty(live: Live, rank: int, turn: int) -> None:
    inputs = batch(rank, turn).requires_grad_()
    output = live.model(inputs)
    (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
    (loss(output) + slope.square().mean()).backward()


def autocast(live: Live, rank: int, turn: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        output = live.model(batch(rank, turn).float())
    output.float().square().mean().backward()


def in_single(live: Live, rank: int, turn: int) -> None:
    live.model(batch(rank, turn).to(next(live.model.parameters()).dtype)).square().mean().backward()


def tokens(live: Live, rank: int, turn: int) -> None:
    generator = torch.Generator().manual_seed(10 * rank + turn)
    ids = torch.randint(7, (2, 5), generator=generator)
    functional.cross_entropy(live.model(ids).flatten(0, 1), ids.flatten()).backward()


def two_losses(live: Live, rank: int, turn: int) -> None:
    one, two = live.model(batch(rank, turn))
    loss(two).backward()
    loss(one).backward()


def one_of_two_losses(live: Live, rank: int, turn: int) -> None:
    loss(live.model(batch(rank, turn))[turn % 2]).backward()


def frozen_for_a_while(live: Live, rank: int, turn: int) -> None:
    live.model.b.requires_grad_(turn % 2 == 0)
    live.model.d.bias.requires_grad_(turn % 2 == 1)
    mean_loss(live, rank, turn)
    live.model.requires_grad_(True)


def a_part_alone(live: Live, rank: int, turn: int) -> None:
    loss(live.model.a(batch(rank, turn + 30))).backward()
    mean_loss(live, rank, turn)
    with torch.no_grad():
        live.model.b(live.model.a(batch(rank, turn)))


def looks_first(live: Live, rank: int, turn: int) -> None:
    with torch.inference_mode():
        live.model(batch(rank, 91))
    mean_loss(live, rank, turn)


def one_trains_the_other(live: Live, rank: int, turn: int) -> None:
    """As a generator and a critic: two models, one loss, then another for one of them."""
    first, second = live.model.a, live.model.b
    loss(second(torch.tanh(first(batch(rank, turn))))).backward()
    loss(second(torch.tanh(first(batch(rank, turn + 9)).detach()))).backward()


def without_a_loss(live: Live, rank: int, turn: int) -> None:
    if rank != 1 or turn == 0:
        mean_loss(live, rank, turn)


# ---- each attack, wrapped and on bare modules ----


def wrap(net: nn.Module, way: str, attack: Attack, comm: Comm) -> tuple[Live, Optimizer]:
    """The model, wrapped in a way, and its optimizer."""
    model, made = net, attack.optimizer
    if way in FSDP:
        for part in attack.parts(net) + [net] * attack.root:
            minidist.fully_shard(part, comm=comm, **WAYS[way])
        optimizer = made(trained(net))  # a bare root's zero_grad does not know the shards
        drop = net.zero_grad if attack.root else optimizer.zero_grad
        return Live(net, drop, lambda: Unsynchronised(net)), optimizer
    if "ddp" in way:
        caps = {"bucket_cap_mb": SMALL, "first_bucket_mb": SMALL / 2}
        options = WAYS[way] if way in DDP else {}
        model = minidist.DistributedDataParallel(
            net, find_unused_parameters=attack.find, comm=comm, **caps, **options
        )
    if way in DDP:
        return Live(model, model.zero_grad, model.no_sync), made(trained(net))
    options = {**WAYS[way], "bucket_cap_mb": SMALL, "comm": comm, **made.keywords}
    optimizer = minidist.ZeroOptimizer(net.parameters(), made.func, **options)
    quiet = {"zero 1 on ddp": getattr(model, "no_sync", None), "zero 2": optimizer.no_sync}
    return Live(model, optimizer.zero_grad, quiet.get(way) or nullcontext), optimizer


def differences(attack: Attack, way: str, comm: Comm | None = None) -> list[str]:
    """What is wrong with this rank's gradients and weights, in words."""
    comm = comm or Ours()
    live, optimizer = wrap(attack.make(), way, attack, comm)
    lead = attack.make()
    bare = [Live(net, net.zero_grad) for net in (copy.deepcopy(lead) for _ in range(comm.ranks))]
    reference = attack.optimizer(trained(lead))
    wrong: list[str] = []
    for turn in range(attack.turns):
        for each in [live, *bare] if attack.zero else bare if way in FORGET else []:
            each.drop(attack.to_none or not attack.zero)
        attack.step(live, comm.rank, turn)
        for rank, each in enumerate(bare):
            each.model.load_state_dict(lead.state_dict() | dict(each.model.named_buffers()), False)
            attack.step(each, rank, turn)
        means(lead, [each.model for each in bare])
        if way not in FSDP or turn == attack.turns - 1:  # else to look at shards is to reshard
            got = minidist.full_gradients(live.model)
            wrong += apart(f"turn {turn}, gradient of", got, gradients(lead))
        optimizer.step()
        reference.step()
    weights = minidist.full_state_dict(live.model)
    named = {name: p.detach() for name, p in lead.named_parameters(remove_duplicate=False)}
    return wrong + apart("weight", {name: weights.get(name) for name in named}, named)


def trained(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def gradients(net: nn.Module) -> Gradients:
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def means(lead: nn.Module, bare: list[nn.Module]) -> None:
    """Give `lead` the means of the others' gradients: zeros for those of some, None if all are."""
    for parameter, *others in zip(*(m.parameters() for m in [lead, *bare]), strict=True):
        made = [each.grad for each in others if each.grad is not None]
        exact = torch.promote_types(parameter.dtype, torch.float64)
        total = sum(each.to(exact) for each in made) / len(bare) if made else None
        parameter.grad = None if total is None else total.to(parameter.dtype)


def apart(what: str, got: Gradients, want: Gradients) -> list[str]:
    """Where the two are not alike, in words."""
    if set(want) - set(got):
        return [f"{what} {sorted(set(want) - set(got))} is missing"]
    wrong = []
    for name, expected in want.items():
        found = got[name]
        if expected is not None and not expected.numel():
            continue
        if found is None or expected is None:
            if found is not expected:
                wrong.append(f"{what} {name}: {found}, expected {expected}")
        elif (found.shape, found.dtype) != (expected.shape, expected.dtype):
            wrong.append(f"{what} {name}: {found.shape}, {found.dtype} for {expected.shape}")
        elif not close(found, expected):
            off = (found - expected).abs().max()
            wrong.append(f"{what} {name}: off by {off:.1e}, the largest is {expected.abs().max()}")
    return wrong


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    relative = {torch.float64: 1e-10, torch.float32: 1e-5, torch.complex64: 1e-5}
    largest = relative.get(one.dtype, 5e-2) * other.abs().max()
    return bool((one - other).abs().max() <= largest)


ATTACKS = {
    "nothing special": Attack(Net),
    "gradients that are never zeroed": Attack(Net, zero=False),
    "backward twice through a retained graph": Attack(Net, retained),
    "never zeroed, each rank its own branch": Attack(Net, by_rank, find=True, zero=False, ways=DDP),
    "a quiet forward, then a loud one, one loss": Attack(Net, one_of_two_quiet(True), ways=DDP),
    "a loud forward, then a quiet one, one loss": Attack(Net, one_of_two_quiet(False), ways=DDP),
    "one loss of two forwards": Attack(Net, two_in_one),
    "a model on its own output": Attack(Net, on_its_own_output),
    "three backwards": Attack(Net, accumulated),
    "gradients that are zeroed in place": Attack(Net, quietly, to_none=False),
    "gradients of what is not used, zeroed in place": Attack(
        Net, by_turn, find=True, to_none=False, turns=4
    ),
    "gradients of what is never used, zeroed in place": Attack(
        Branches, find=True, to_none=False, turns=4
    ),
    "three backwards, two quiet": Attack(Net, quietly),
    "never zeroed, three backwards, two quiet": Attack(Net, quietly, zero=False),
    "quiet and loud in turns": Attack(Net, loud_and_quiet),
    "each rank its own branch": Attack(Net, by_rank, find=True, turns=4),
    "each turn its own branch": Attack(Net, by_turn, find=True, turns=4),
    "a nested output, of which the loss uses a part": Attack(lambda: Net(nested), part_of_nested),
    "one rank alone asks for gradients of its inputs": Attack(Net, asks_alone, ways=DDP),
    "a loss that also uses the parameters": Attack(Net, loss_around_it, ways=DDP),
    "gradients with a graph": Attack(Net, graph_of_gradients, ways=DDP),
    "a module that is used twice within another": Attack(Inside, ways=DDP),
    "layers in another order on each rank": Attack(InOtherOrder, with_rank, ways=DDP),
    "the wrapper itself is checkpointed": Attack(Net, checkpointed, ways=DDP),
    "a function that returns None for a weight": Attack(Undefined, with_rank, ways=DDP),
    "odd parameters, complex ones": Attack(lambda: Odd(True, True), ways=DDP),
    "an output changed in place": Attack(Net, changed_in_place),
    "an output with hooks of its own": Attack(Net, hooked),
    "inputs that want gradients": Attack(Net, with_inputs),
    "evaluation between forward and backward": Attack(Net, looks_between),
    "forwards without a backward": Attack(Net, never_backward),
    "forwards without a backward, kept": Attack(
        Net, never_backward, ways=("zero 2", "dim0, kept", "flat, kept, no prefetch")
    ),
    "gradients dropped between": Attack(Net, none_between),
    "backward in another thread": Attack(Net, in_a_thread),
    "gradient penalty": Attack(Net, penalty, ways=DDP + ZERO),
    "gradient penalty, unused parameters looked for": Attack(Net, penalty, find=True, ways=DDP),
    "tied parameters": Attack(Tied),
    "the first unit frozen, a part of the second": Attack(lambda: Frozen(True)),
    "a part of the first unit frozen, the second": Attack(lambda: Frozen(False)),
    "a unit called twice": Attack(lambda: Twice(False), find=True),
    "a unit called twice, and another inside it": Attack(
        lambda: Twice(True), parts=lambda net: [net.a, net.b[0], net.b], find=True
    ),
    "every layer a unit": Attack(Net, parts=lambda net: [net.a, net.b, net.c, net.d]),
    "the root alone": Attack(Net, parts=lambda net: []),
    "buffers": Attack(Norms),
    "odd parameters": Attack(Odd),
    "odd parameters of several dtypes": Attack(lambda: Odd(True)),
    "keywords, containers, integers": Attack(ByName),
    "units that are not used": Attack(
        Branches, parts=lambda net: [net.a, net.b, net.unused, net.ignored, net.cut], find=True
    ),
    "autocast": Attack(lambda: Net().float(), autocast),
    "single precision": Attack(lambda: Net().float(), in_single),
    "half precision": Attack(lambda: Net().half(), in_single),
    "brain floats": Attack(lambda: Net().bfloat16(), in_single),
    "attention": Attack(lambda: Recurrent("attention")),
    "an LSTM": Attack(lambda: Recurrent("lstm")),
    "a parametrization": Attack(lambda: Recurrent("weight norm")),
    "units that write in place": Attack(InPlace, find=True),
    "units that pass on what they are given": Attack(Passing),
    "two outputs, a loss and a backward for each": Attack(TwoHeads, two_losses, find=True),
    "two outputs, a loss for one": Attack(TwoHeads, one_of_two_losses, find=True, turns=4),
    "frozen for a while": Attack(Net, frozen_for_a_while, ways=NOT_DDP, turns=4),
    "a part that is also called alone": Attack(Net, a_part_alone, ways=NOT_DDP),
    "evaluation before all": Attack(Net, looks_first),
    "two models in one backward": Attack(Net, one_trains_the_other, root=False, ways=NOT_DDP),
    "a rank without a loss": Attack(Net, without_a_loss, ways=FORGET),
    "gradients of minus zero": Attack(MinusZero, by_rank, find=True),
    "adam": Attack(Net, accumulated, optimizer=partial(torch.optim.Adam, lr=0.01)),
}
OUTPUTS: dict[str, Any] = {
    "a tensor": None,
    "a dataclass": Output,
    "an object": lambda y: SimpleNamespace(y=y),  # which FSDP does not look into
}
for _kind, _wrap in OUTPUTS.items():
    _ways = DDP + ZERO if _kind == "an object" else list(WAYS)
    _plain = partial(Net, _wrap)
    ATTACKS |= {
        f"{_kind} as output": Attack(_plain, ways=_ways),
        f"{_kind}: two forwards, then two backwards": Attack(_plain, two_and_two, ways=_ways),
        f"{_kind}: used only in no_sync": Attack(_plain, used_only_quietly, find=True, ways=DDP),
        f"{_kind}: checkpoints": Attack(partial(Checkpointed, False, _wrap), ways=_ways),
        f"{_kind}: checkpoints, reentrant": Attack(partial(Checkpointed, True, _wrap), ways=_ways),
    }


def verdicts(ways: list[str]) -> dict[str, list[str]]:
    """This rank's differences, by attack and way; the attacks go in the ways in turns."""
    found: dict[str, list[str]] = {}
    for number, (name, attack) in enumerate(ATTACKS.items()):
        possible = [way for way in ways if way in attack.ways]
        if not possible:
            continue
        way = possible[number % len(possible)]
        try:
            found[f"{name}; {way}"] = differences(attack, way)
        except Exception as error:
            raise RuntimeError(f"rank {dist.get_rank()}: {name}; {way}: {error}") from error
    return found
