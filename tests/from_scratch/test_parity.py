"""from_scratch trains as one process does, whatever the model; or it refuses in a sentence."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from from_scratch.ddp import BucketedDDP, FlatDDP, OverlappedDDP, PerParameterDDP
from from_scratch.fsdp import FSDP
from from_scratch.zero import ZeRO1, ZeRO2
from from_scratch.zero3 import ZeRO3
from minidist import Ours, launch

ROWS, WIDE = 60, 6  # of a batch: 1 to 4 ranks divide it
CAP, RATE = 1e-4, 0.01  # MiB: several buckets
Trained = tuple[Any, Any, Callable[[], object]]  # model, optimizer, synchronize


def dense(*sizes: int) -> nn.Sequential:
    """A block, which FSDP makes a unit."""
    pairs = pairwise(sizes or (WIDE, WIDE))
    return nn.Sequential(*(part for i, o in pairs for part in (nn.Linear(i, o), nn.Tanh())))


class Model(nn.Module):
    """Some blocks, and a forward that is given them and the input."""

    def __init__(self, run: Callable[..., Any], *blocks: nn.Module, frozen: str = "") -> None:
        super().__init__()
        self.run, self.blocks, self.calls = run, nn.ModuleList(blocks), 0
        self.scale = nn.Parameter(torch.ones(WIDE))  # the root's own
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not frozen or not name.startswith(tuple(frozen.split())))

    def forward(self, x: Tensor) -> Any:
        self.calls += self.training
        return self.run(self, x * self.scale, *self.blocks)


def chain(_: Model, x: Tensor, *blocks: nn.Module) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDE))
        self.register_buffer("shift", torch.randn(WIDE))
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("mask", torch.tensor([True, False] * (WIDE // 2)))
        self.register_buffer("none", None)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight + self.shift * self.count.sum()) * self.mask


class Shapes(nn.Module):
    """A number, an empty tensor, a transposed one, three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.empty = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(0, 3))
        self.cube = nn.Parameter(torch.randn(2, 3, WIDE))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.number + self.empty.sum() + self.cube.sum((0, 1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x).tanh())


def a_b_a(_: Model, x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
    return a(b(a(x)))


def either_order(model: Model, x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
    return a(b(x)) if model.calls % 2 else b(a(x))


def some(model: Model, x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
    """In evaluation it leaves a block out."""
    return c(b(a(x))) if model.training else c(a(x))


def no_grad_trunk(_: Model, x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
    with torch.no_grad():
        x = a(x)
    return b(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDE, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, None], x[:, None], x[:, None])[0][:, 0]


MODELS: dict[str, Callable[[], Model]] = {
    "chain": lambda: Model(chain, dense(), dense(WIDE, 7, 5), dense(5, 1)),
    "six blocks": lambda: Model(chain, *(dense() for _ in range(6))),
    "no blocks": lambda: Model(chain),
    "odd sizes": lambda: Model(chain, dense(WIDE, 1), dense(1, 13), dense(13, 3)),
    "shapes": lambda: Model(chain, Shapes(), dense()),
    "buffers": lambda: Model(chain, Buffered(), dense()),
    "frozen root": lambda: Model(chain, dense(), dense(), frozen="scale"),
    "frozen block": lambda: Model(chain, dense(), dense(), dense(), frozen="blocks.1"),
    "frozen first block": lambda: Model(chain, dense(), dense(), frozen="scale blocks.0"),
    "frozen bias": lambda: Model(chain, dense(), dense(), frozen="blocks.0.0.bias"),
    "one trainable": lambda: Model(chain, dense(), dense(), frozen="blocks.0 blocks.1.0.w scale"),
    "tied": lambda: Model(chain, dense(), Tied(), dense()),
    "a, a": lambda: Model(lambda _, x, a: a(a(x)), dense()),
    "a, b, a": lambda: Model(a_b_a, dense(), dense()),
    "a, b, a in a list": lambda: Model(chain, *[dense(), dense()] * 2),
    "either order": lambda: Model(either_order, dense(), dense()),
    "some in evaluation": lambda: Model(some, dense(), dense(), dense()),
    "branches": lambda: Model(lambda _, x, a, b, c: c(a(x) * b(x)), dense(), dense(), dense()),
    "run in vain": lambda: Model(lambda _, x, a, b: (b(x), b(a(x)))[1], dense(), dense()),
    "residual": lambda: Model(lambda _, x, a, b: x + b(x + a(x)), dense(), dense()),
    "identity": lambda: Model(chain, dense(), nn.Identity(), dense()),
    "in place": lambda: Model(lambda _, x, a, b: b(a(x).tanh_()), nn.Linear(WIDE, WIDE), dense()),
    "nested": lambda: Model(chain, nn.Sequential(dense(), nn.Linear(WIDE, WIDE), dense()), dense()),
    "no grad": lambda: Model(no_grad_trunk, dense(), dense(), frozen="scale blocks.0"),
    "layer norm": lambda: Model(chain, nn.LayerNorm(WIDE), dense()),
    "convolution": lambda: Model(
        lambda _, x, a, b: b(a(x[:, None])[:, 0]), nn.Conv1d(1, 1, 3, padding=1), dense()
    ),
    "attention": lambda: Model(chain, Attention(), dense()),
    "weight norm": lambda: Model(chain, weight_norm(nn.Linear(WIDE, WIDE)), dense()),
    "used elsewhere": lambda: Model(lambda m, x, a: a(linear(x, torch.diag(m.scale))), dense()),
    "float": lambda: Model(chain, dense(), dense()).float(),
    "bfloat16": lambda: Model(chain, dense(), dense()).bfloat16(),
}
# Those that any number of ranks trains; two ranks train all.
FEW = ["shapes", "odd sizes", "buffers", "frozen bias", "a, b, a", "some in evaluation"]
FEW += ["run in vain"]
TOLERANCE = {"float": 1e-5, "bfloat16": 3e-2}
# Backward, step, zero_grad, a forward to evaluate: an evaluation before the optimizer steps,
# two backwards for a step, a batch that is skipped, a step that no zero_grad follows.
LOOP = "E BESZ BBSZ BZ BS B"


def ddp(kind: Any, net: nn.Module, comm: Ours, *cap: float) -> Trained:
    model = kind(net, comm, *cap)
    return model, AdamW(net.parameters(), RATE), model.synchronize


def zero(kind: type[ZeRO1], cap: float, net: nn.Module, comm: Ours) -> Trained:
    return net, kind(net.parameters(), AdamW, comm, cap, lr=RATE), int


def zero_3(net: nn.Module, comm: Ours) -> Trained:
    model = ZeRO3(net, comm)
    return model, AdamW(model.parameters(), RATE), int


def fsdp(prefetch: bool, net: Any, comm: Ours) -> Trained:
    inner = [each for each in net.modules() if type(each) is nn.Sequential]
    model = FSDP(net, [*net.blocks, *inner], comm, prefetch)
    return model, AdamW(model.shards, RATE), model.synchronize


WAYS: dict[str, Callable[[Any, Ours], Trained]] = {
    "per parameter": partial(ddp, PerParameterDDP),
    "flat": partial(ddp, FlatDDP),
    "bucketed": lambda net, comm: ddp(BucketedDDP, net, comm, CAP),
    "overlapped": lambda net, comm: ddp(OverlappedDDP, net, comm, CAP),
    "ZeRO-1": partial(zero, ZeRO1, CAP),
    "ZeRO-2": partial(zero, ZeRO2, CAP),
    "ZeRO-2, one bucket": partial(zero, ZeRO2, 25),
    "ZeRO-3": zero_3,
    "FSDP": partial(fsdp, False),
    "FSDP, prefetch": partial(fsdp, True),
}


def made(name: str) -> Model:
    torch.manual_seed(5)
    net = MODELS[name]()
    return net if name in TOLERANCE else net.double()


def spoil(net: nn.Module, buffers: bool) -> None:
    """Let each rank begin with a model of its own; rank 0's must win."""
    with torch.no_grad():
        for tensor in [*net.parameters(), *(net.buffers() if buffers else [])]:
            if dist.get_rank():
                tensor.copy_(tensor.logical_not() if tensor.dtype is torch.bool else tensor + 1)


def losses(net: Any, trained: Trained, rank: int = 0, ranks: int = 1) -> Iterator[Tensor]:
    """Of a loop over this rank's rows, in double precision."""
    model, optimizer, synchronize = trained
    for number, action in enumerate(LOOP.replace(" ", "")):
        if action in "SZ":
            optimizer.step() if action == "S" else optimizer.zero_grad()
            continue
        trains = action == "B"
        batch = torch.randn(ROWS, WIDE, generator=torch.Generator().manual_seed(number))
        with torch.set_grad_enabled(trains):
            net.train(trains)
            loss = model(batch.to(net.scale.dtype).chunk(ranks)[rank]).square().mean()
        if trains:
            loss.backward()
            synchronize()
            whole = [each.buffer.untyped_storage().size() for each in getattr(model, "units", [])]
            assert not any(whole), f"{net}: a unit is gathered when all is synchronized"
        yield loss.detach().double()


@cache
def of_one_process(name: str) -> list[Tensor]:
    net = made(name)
    return [*losses(net, (net, AdamW(net.parameters(), RATE), int))]


def off(way: str, name: str) -> str:
    """Which loss is not that of one process, if any."""
    net = made(name)
    spoil(net, buffers="ZeRO-1" not in way and "ZeRO-2" not in way)  # they see parameters alone
    trained, ranks = WAYS[way](net, Ours(check=False)), dist.get_world_size()
    tolerance = TOLERANCE.get(name, 1e-9)
    both = zip(losses(net, trained, dist.get_rank(), ranks), of_one_process(name), strict=True)
    for number, (mean, right) in enumerate(both):
        dist.all_reduce(mean)
        if not torch.allclose(mean / ranks, right, tolerance, tolerance):
            return f"{way}, {name}, loss {number}: {mean.item() / ranks}, not {right.item()}"
    return ""


def all_off(names: list[str]) -> list[str]:
    torch.set_num_threads(1)
    return [text for way in WAYS for name in names if (text := off(way, name))]


@pytest.mark.claim("E1")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_losses_are_those_of_one_process(ranks: int) -> None:
    names = list(MODELS) if ranks == 2 else FEW
    assert launch(all_off, ranks, names, timeout=280) == [[]] * ranks


# ---- what is left out ----


class Part(nn.Module):
    """Uses one of its two layers; or returns two tensors."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Any:
        return self.used(x) if self.outputs == 1 else (self.used(x), self.unused(x))


def tied() -> Model:
    net = Model(chain, dense(), dense())
    net.blocks[1][0].weight = net.blocks[0][0].weight  # type: ignore[index]
    return net


def two_dtypes() -> Model:
    net = Model(lambda m, x, a: a(x) * m.factor, dense())
    net.factor = nn.Parameter(torch.ones(()).double())
    return net


def part() -> Model:
    return Model(chain, Part())


def two_outputs() -> Model:
    return Model(lambda _, x, a: sum(a(x)), Part(outputs=2))


def two_blocks() -> Model:
    return Model(chain, dense(), dense())


def checkpointed() -> Model:
    return Model(lambda _, x, a: checkpoint(a, x, use_reentrant=False), dense())


UNUSED, EACH = "not used in this step", "synchronize() after each backward"
REFUSED = [  # a way, a model, whether to synchronize between two backwards, what it says
    *((way, part, True, UNUSED) for way in WAYS if way != "ZeRO-3"),
    ("overlapped", two_blocks, False, EACH),
    ("FSDP", two_blocks, False, EACH),
    ("FSDP", tied, True, "two units share a weight"),
    ("FSDP", two_outputs, True, "one tensor, not a tuple"),
    ("FSDP", checkpointed, True, "activation checkpointing"),
    ("ZeRO-3", checkpointed, True, "activation checkpointing"),
    *((way, two_dtypes, True, "several dtypes") for way in WAYS if way != "per parameter"),
]


def refusal(way: str, build: Callable[[], Model], waits: bool) -> str:
    try:
        model, optimizer, synchronize = WAYS[way](build(), Ours())
        for _ in range(2):
            model(torch.ones(2, WIDE)).sum().backward()
            if waits:
                synchronize()
                optimizer.step()
                optimizer.zero_grad()  # a second backward must not be what tells
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return "nothing"


def refusals() -> list[str]:
    return [refusal(way, build, waits) for way, build, waits, _ in REFUSED]


def test_what_is_left_out_is_refused_in_a_sentence() -> None:
    (said,) = launch(refusals, 1)
    for (way, build, _, sentence), found in zip(REFUSED, said, strict=True):
        assert sentence in found, (way, build.__name__)


def test_groups_of_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="expected parameters, not groups"):
        ZeRO1([{"params": []}], AdamW, object())  # type: ignore[list-item, arg-type]


# ---- ranks that run equal blocks each in its own way ----


def own_way(model: Any, x: Tensor, *blocks: nn.Module) -> Tensor:
    """One of two blocks, by rank, or both of them in an order that is the rank's."""
    first, second = blocks[:: -1 if model.rank else 1]
    return first(x) if model.skips else second(first(x))


def own_loss(way: str, skips: bool) -> str:
    """What a way does with them: what it says, or how its loss compares with one process's."""
    net, alone = (Model(own_way, dense(), dense()).double() for _ in range(2))
    alone.load_state_dict(net.state_dict())
    for each in (net, alone):
        each.rank, each.skips = dist.get_rank(), skips  # type: ignore[assignment]
    x, right = torch.arange(WIDE).double()[None], AdamW(alone.parameters(), RATE)
    model, optimizer, synchronize = WAYS[way](net, Ours())
    try:
        for _ in range(3):
            loss = model(x).square().mean()
            loss.backward()
            synchronize()
            optimizer.step()
            optimizer.zero_grad()
            for alone.rank in (0, 1):  # type: ignore[assignment]
                (alone(x).square().mean() / 2).backward()
            alone.rank = dist.get_rank()  # type: ignore[assignment]
            expected = alone(x).square().mean()
            right.step()
            right.zero_grad()
    except RuntimeError as error:
        return str(error)
    return "right" if torch.isclose(loss, expected) else "another loss"


def own_losses(ways: list[str], skips: bool) -> list[str]:
    torch.manual_seed(0)
    return [own_loss(way, skips) for way in ways]


def test_ranks_that_run_equal_blocks_in_their_own_order() -> None:
    expected = ["another loss" if "FSDP" in way else "right" for way in WAYS]  # fsdp.md says so
    assert launch(own_losses, 2, [*WAYS], False) == [expected, expected]


@pytest.mark.parametrize("way", ["overlapped", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP, prefetch"])
def test_ranks_that_skip_different_equal_blocks(way: str) -> None:
    for (said,) in launch(own_losses, 2, [way], True):
        assert said == "right" if way == "ZeRO-3" else UNUSED in said
