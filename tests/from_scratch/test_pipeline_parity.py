"""The lesson's pipeline trains as one process does, whatever the layers; or the page says so.

What it refuses stands in test_pipeline.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import AdamW

from from_scratch.pipeline import Pipeline
from minidist import launch
from minidist.schedule.pipeline import (
    Order,
    dual_pipe_v,
    gpipe,
    homes,
    interleaved,
    one_f_one_b,
    sequence,
)

LAYERS, SAMPLES, WIDE, RATE = 24, 24, 5, 0.01  # what the stages of 1 to 4 ranks divide
Make = Callable[[], nn.Sequential]


class Layer(nn.Linear):
    """Residual, so that neither activations nor gradients fade on their way."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x).tanh() / 4


class Turned(Layer):
    """Its output is a transposed view."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).T.contiguous().T


class Detached(Layer):
    """Lets no gradient through."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


def layers(kind: type[nn.Module] = Layer, **others: nn.Module) -> nn.Sequential:
    """All of one kind, but for some: `_3` takes the place of the fourth."""
    own = [others.get(f"_{n}") or kind(WIDE, WIDE) for n in range(LAYERS)]  # type: ignore[call-arg]
    return nn.Sequential(*own)


def frozen(*places: int) -> nn.Sequential:
    net = layers()
    for place in places:
        net[place].requires_grad_(False)
    return net


def tied(one: int, other: int) -> nn.Sequential:
    net = layers()
    net[other].weight = net[one].weight
    return net


def same_module(one: int, other: int) -> nn.Sequential:
    net = layers()
    net[other] = net[one]
    return net


# A rank has two stages, so its second one begins with layer 12, on rank 0.
MODELS: dict[str, Make] = {
    "layers": layers,
    "first stage frozen": lambda: frozen(*range(12)),
    "second half frozen": lambda: frozen(*range(12, 24)),
    "one layer trained": lambda: frozen(*range(11), *range(12, 24)),
    "tied in a stage": lambda: tied(0, 1),
    "tied in two stages": lambda: tied(0, 12),
    "a layer twice": lambda: same_module(1, 13),
    "identities": lambda: layers(
        nn.Identity, **{f"_{n}": Layer(WIDE, WIDE) for n in (0, 5, 8, 10, 23)}
    ),
    "transposed": lambda: layers(Turned),
    "narrow under autocast": lambda: layers(nn.Linear),
    "layer norms": lambda: layers(_2=nn.LayerNorm(WIDE), _11=nn.LayerNorm(WIDE)),
    "a stage of its own shape": lambda: layers(
        _1=nn.Sequential(nn.Linear(WIDE, 7), nn.Tanh(), nn.Linear(7, WIDE))
    ),
}
ORDERS: dict[str, Callable[[int], Order]] = {
    "GPipe": lambda ranks: gpipe(ranks, 4),
    "1F1B": lambda ranks: one_f_one_b(ranks, 6),
    "interleaved": lambda ranks: interleaved(ranks, 2 * ranks, 2),
    "DualPipeV": lambda ranks: dual_pipe_v(ranks, 2 * ranks),
}
# Step's backward, step, zero_grad: two batches for a step, one that is skipped, one added.
LOOP = "BSZ BBSZ BZ BS BSZ"


def none_ignored(y: Tensor) -> Tensor:
    return y.argmax(-1)


def some_ignored(y: Tensor) -> Tensor:
    """Of the first half all, of the rest some."""
    place = torch.arange(len(y))
    return y.argmax(-1).where((place >= 12) & (place % 5 > 0), -100)


TARGETS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "numbers": (lambda y: y, mse_loss),
    "classes": (none_ignored, cross_entropy),
    "ignored": (some_ignored, cross_entropy),
}


def made(name: str, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(5)
    return MODELS[name]().to(dtype)


def losses(net: nn.Sequential, backward: Callable[..., Any], target: str) -> Iterator[Any]:
    """Of a loop over batches; `backward` takes inputs, labels and a loss, and returns its mean."""
    label, loss_of = TARGETS[target]
    optimizer = AdamW(net.parameters(), RATE)
    dtype = next(net.parameters()).dtype
    for number, action in enumerate(LOOP.replace(" ", "")):
        if action == "B":
            x, y = torch.randn(2, SAMPLES, WIDE, generator=torch.Generator().manual_seed(number))
            yield backward(x.to(dtype), label(y.to(dtype)), loss_of)
        elif action == "S":
            optimizer.step()
        else:
            optimizer.zero_grad()


def off(
    name: str, order: str, target: str, dtype: torch.dtype, border: torch.dtype, auto: bool
) -> str:
    """What is not as in one process, on this rank."""
    works = ORDERS[order](dist.get_world_size())
    micro = 1 + max(m for *_, m in sequence(works))
    net, alone = made(name, dtype), made(name, dtype)
    pipeline = Pipeline(net, homes(works), torch.empty(SAMPLES // micro, WIDE, dtype=border))

    def piped(x: Tensor, y: Tensor, loss_of: Callable[..., Tensor]) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=auto):
            return pipeline.step(sequence(works), x, y, loss_of)

    def at_once(x: Tensor, y: Tensor, loss_of: Callable[..., Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=auto):
            loss = loss_of(alone(x), y)
        torch.autograd.backward(loss)
        return loss.detach()

    own = nn.Sequential(*pipeline.modules.values())
    mean, right = [*losses(own, piped, target)], [*losses(alone, at_once, target)]
    tolerance = 1e-9 if dtype == torch.float64 else 3e-2
    label = f"{name}, {order}, {target}, {border}, rank {dist.get_rank()}"
    for number, (loss, whole) in enumerate(zip(mean, right, strict=True)):
        if loss is not None and not torch.allclose(loss, whole, tolerance, tolerance):
            return f"{label}, loss {number}: {loss}, not {whole}"
    trained = dict(net.named_parameters())
    mine = {id(each) for each in pipeline.parameters()}
    if len(mine) < len(pipeline.parameters()):
        return f"{label}: a parameter is named twice"
    for path, weight in alone.named_parameters():
        found = trained[path]
        if id(found) in mine and not torch.allclose(found, weight, tolerance, tolerance):
            return f"{label}: {path} is off by {(found - weight).abs().max():.1e}"
    return ""


FLOAT, DOUBLE, HALF = torch.float32, torch.float64, torch.bfloat16
MOST = [(name, "interleaved", "numbers", DOUBLE, DOUBLE, False) for name in MODELS]
APART = {"tied in two stages", "a layer twice"}  # in a V they are on two ranks
MOST += [(name, "DualPipeV", *rest) for name, _, *rest in MOST if name not in APART]
FEW: list[tuple[Any, ...]] = [
    *(
        (name, "interleaved", "numbers", DOUBLE, DOUBLE, False)
        for name in ("first stage frozen", "tied in two stages")
    ),
    *(("layers", order, "ignored", DOUBLE, DOUBLE, False) for order in ORDERS),
    ("layers", "GPipe", "classes", DOUBLE, DOUBLE, False),
    ("layers", "interleaved", "numbers", HALF, HALF, False),
    ("layers", "interleaved", "classes", FLOAT, FLOAT, True),
    ("narrow under autocast", "interleaved", "classes", FLOAT, FLOAT, True),
    ("layers", "1F1B", "ignored", FLOAT, FLOAT, True),
]


def all_off(cases: list[tuple[Any, ...]]) -> list[str]:
    torch.set_num_threads(1)
    return [text for case in cases if (text := off(*case))]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_losses_and_weights_are_those_of_one_process(ranks: int) -> None:
    cases = FEW + MOST if ranks == 2 else FEW
    assert launch(all_off, ranks, cases, timeout=200) == [[]] * ranks


# ---- what it does not notice: the table of the chapter ----

MODELS |= {
    "batch norm": lambda: layers(_3=nn.BatchNorm1d(WIDE)),
    "detached": lambda: layers(_13=Detached(WIDE, WIDE)),
}
TARGETS |= {
    "another ignore_index": (none_ignored, partial(cross_entropy, ignore_index=0)),
    "class weights": (none_ignored, partial(cross_entropy, weight=torch.arange(5.0).double())),
    "sum": (lambda y: y, partial(mse_loss, reduction="sum")),
}
UNNOTICED = {
    "an `ignore_index` other than -100": ("layers", "another ignore_index", "loss 0"),
    "class weights": ("layers", "class weights", "loss 0"),
    "a loss that is a sum": ("layers", "sum", "loss 0"),
    "BatchNorm": ("batch norm", "numbers", "loss 0"),
    "a stage that detaches": ("detached", "numbers", "loss 1"),
}


def found_off(name: str, target: str) -> str:
    return off(name, "interleaved", target, DOUBLE, DOUBLE, False)


def test_the_table_of_what_goes_unnoticed_is_true() -> None:
    page = Path(__file__).parents[2] / "book" / "pipelines.md"
    table = page.read_text().partition(" does not notice\n")[2].partition(":::")[0]
    (found,) = launch(lambda: [found_off(*case) for *case, _ in UNNOTICED.values()], 1)
    for (case, (*_, what)), said in zip(UNNOTICED.items(), found, strict=True):
        assert what in said, (case, said)
        assert case in table, case
