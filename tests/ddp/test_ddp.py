"""DistributedDataParallel against the same training in one process, and against torch's."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist import DistributedDataParallel, Native, Ours, launch
from tests.support.training import compare, gradients, mlp, numbers, quiet

MODES = ("naive", "flat", "bucketed", "overlapped")
SMALL = {"bucket_cap_mb": 200e-6, "first_bucket_mb": 50e-6}  # several buckets of few parameters
Case = Callable[[], str]


def cases_fail(cases: dict[str, Case], ranks: int) -> dict[str, str]:
    """All in one launch; what is wrong, by case and rank."""

    def run() -> dict[str, str]:
        return {name: wrong for name, case in cases.items() if (wrong := case())}

    found = launch(run, ranks)
    return {f"{name}, rank {r}": why for r, each in enumerate(found) for name, why in each.items()}


# Modes and options


def once(model: Any, rank: int, step: int) -> None:
    model(numbers(rank, step, 3, 6)).square().mean().backward()


def accumulated(model: Any, rank: int, step: int) -> None:
    with quiet(model):
        once(model, rank, step + 100)
        once(model, rank, step + 200)
    once(model, rank, step)


def every_mode() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for sync, view, to_none in product(MODES, (False, True), (False, True)):
        options = {"sync": sync, "gradient_as_bucket_view": view, "to_none": to_none, **SMALL}
        for train in (once, accumulated):
            name = f"{sync}, view {view}, to_none {to_none}, {train.__name__}"
            cases[name] = partial(compare, partial(mlp, 6, 5, 4), train, **options)
    return cases


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_mode_gives_the_mean_of_the_ranks_gradients(ranks: int) -> None:
    assert cases_fail(every_mode(), ranks) == {}


def with_comm(make: Callable[[], Any]) -> str:
    return compare(partial(mlp, 6, 5, 4), once, comm=make(), **SMALL)


def test_over_any_comm_and_in_a_sub_group() -> None:
    def in_pairs() -> str:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = pairs[dist.get_rank() // 2]
        torch.manual_seed(0)
        ddp = DistributedDataParallel(mlp(6, 5), mine)
        total = torch.zeros(6 * 5, dtype=torch.float64)
        once(ddp, dist.get_rank(), 0)
        for rank in dist.get_process_group_ranks(mine):
            torch.manual_seed(0)
            alone = mlp(6, 5)
            alone.load_state_dict(ddp.state_dict())
            once(alone, rank, 0)
            total += alone[0].weight.grad.view(-1) / 2  # type: ignore[operator, index, union-attr]
        got = ddp.module[0].weight.grad.view(-1)  # type: ignore[operator, index, union-attr]
        return "" if torch.allclose(got, total) else f"{got} instead of {total}"

    makes = {"ring": partial(Ours, algorithm="ring"), "auto": Ours, "native": Native}
    cases: dict[str, Case] = {name: partial(with_comm, make) for name, make in makes.items()}
    assert cases_fail(cases, 3) == {}
    assert cases_fail({"pairs": in_pairs}, 4) == {}


def as_torch(**options: Any) -> list[str]:
    """Five steps of momentum beside torch's, and beside one process on the whole batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = mlp(6, 9, 3)
    theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(net))
    whole = copy.deepcopy(net)
    ours = DistributedDataParallel(net, **SMALL, **options)
    models = [ours, theirs, whole]
    sgd = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    wrong = []
    for step in range(5):
        shards = [numbers(r, step, 4, 6) for r in range(ranks)]
        for model, optimizer in zip(models, sgd, strict=True):
            optimizer.zero_grad()
            model(torch.cat(shards) if model is whole else shards[rank]).square().mean().backward()
        for name, mine in gradients(ours).items():
            for other in (theirs, whole):
                if not torch.allclose(mine, gradients(other)[name], 1e-12, 1e-12):  # type: ignore[arg-type]
                    wrong.append(f"step {step}: {name}: {options}")
        for optimizer in sgd:
            optimizer.step()
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_as_torchs_and_as_one_process_on_the_whole_batch(ranks: int) -> None:
    def run() -> list[str]:
        return [why for sync in MODES for why in as_torch(sync=sync)]

    assert launch(run, ranks) == [[]] * ranks


# What modules do


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = mlp(6, 4), nn.Linear(4, 6, bias=False, dtype=torch.float64)
        self.again = nn.Linear(4, 6, bias=False, dtype=torch.float64)
        self.again.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.down(self.up(self.down(x))))


def frozen() -> nn.Module:
    net = mlp(6, 5, 4)
    net[0].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    return net


def images(model: Any, rank: int, step: int) -> None:
    x = numbers(rank, step, 2, 3, 5, 5).to(memory_format=torch.channels_last)
    model(x).square().mean().backward()


def convnet() -> nn.Module:
    conv = nn.Conv2d(3, 4, 3, dtype=torch.float64)
    net = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(4, 2, 2, dtype=torch.float64))
    return net.to(memory_format=torch.channels_last)


class Dtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = mlp(6, 5), mlp(5, 2)
        self.middle = nn.Linear(5, 5)
        self.narrow = nn.Linear(5, 5, dtype=torch.bfloat16)
        self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.middle(self.first(x).float())
        x = self.narrow(x.bfloat16()).float()
        return self.last((x * self.turn).abs().double())


def under_autocast(model: Any, rank: int, step: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(numbers(rank, step, 3, 6, dtype=torch.float32)).float().square().mean()
    loss.backward()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.part, self.last = mlp(6, 5), mlp(5, 5), mlp(5, 4)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.part, self.first(x), use_reentrant=self.reentrant))


def clipped(model: Any, rank: int, step: int) -> None:
    """With the averaged gradients: in one process after averaging, which `compare` sees to."""
    once(model, rank, step)
    if hasattr(model, "module"):
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # large: nothing may change but by it


def two_forwards(model: Any, rank: int, step: int) -> None:
    first, second = model(numbers(rank, step, 3, 6)), model(numbers(rank, step + 50, 3, 6))
    (first * second).mean().backward()


def in_turns(model: Any, rank: int, step: int) -> None:
    """Two forwards, then a backward of each; gradients add up."""
    first, second = model(numbers(rank, step, 3, 6)), model(numbers(rank, step + 50, 3, 6))
    first.square().mean().backward()
    second.square().mean().backward()


def retained(model: Any, rank: int, step: int) -> None:
    out = model(numbers(rank, step, 3, 6))
    out.square().mean().backward(retain_graph=True)
    out.mean().backward()


def half_quiet(model: Any, rank: int, step: int) -> None:
    """One loss of two forwards, of which one is within no_sync."""
    second = model(numbers(rank, step, 3, 6))
    with quiet(model):
        first = model(numbers(rank, step + 50, 3, 6))
    (first.square().mean() + second.square().mean()).backward()


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([mlp(6, 4), mlp(6, 3)])

    def forward(self, x: torch.Tensor, part: int) -> torch.Tensor:
        return self.parts[part](x)


def halves_quiet(model: Any, rank: int, step: int) -> None:
    """The same, of different parts: one's gradients are there before the other's backward."""
    first = model(numbers(rank, step, 3, 6), 0)
    with quiet(model):
        second = model(numbers(rank, step + 50, 3, 6), 1)
    (first.square().mean() + second.square().mean()).backward()


def penalised(model: Any, rank: int, step: int) -> None:
    """A gradient within the loss: autograd.grad passes the output, but is no backward."""
    x = numbers(rank, step, 3, 6).requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (out.mean() + slope.square().mean()).backward()


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 4)

    def forward(self, x: torch.Tensor, *, name: str) -> dict[str, Any]:
        return {name: (self.net(x), None, "text"), "weight": self.net[0].weight}  # type: ignore[index]


def of_containers(model: Any, rank: int, step: int) -> None:
    out = model(numbers(rank, step, 3, 6), name="out")
    (out["out"][0].mean() + out["weight"].square().sum()).backward()


@dataclass
class Fields:
    first: torch.Tensor
    rest: list[torch.Tensor]


class Typed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 4)

    def forward(self, x: torch.Tensor) -> Fields:
        return Fields(self.net(x), [x])


def of_typed(model: Any, rank: int, step: int) -> None:
    """Two forwards, two backwards, of what is no container to torch."""
    first, second = (model(numbers(rank, step + more, 3, 6)).first for more in (0, 50))
    first.square().mean().backward()
    second.square().mean().backward()


class Hidden:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Opaque(nn.Module):
    """Its output is nothing that one can look into."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 4)

    def forward(self, x: torch.Tensor) -> Hidden:
        return Hidden(self.net(x))


def of_opaque(model: Any, rank: int, step: int) -> None:
    """As above; and before, in no_sync."""
    with quiet(model):
        model(numbers(rank, step + 99, 3, 6)).value.square().mean().backward()
    first, second = (model(numbers(rank, step + more, 3, 6)).value for more in (0, 50))
    first.square().mean().backward()
    second.square().mean().backward()


def with_graph(model: Any, rank: int, step: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice against it
        model(numbers(rank, step, 3, 6)).square().mean().backward(create_graph=True)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.detach()


def normed() -> nn.Module:
    return nn.Sequential(mlp(6, 5), nn.BatchNorm1d(5, dtype=torch.float64), mlp(5, 2))


MODULES: dict[str, tuple[Callable[[], nn.Module], Any, dict[str, Any]]] = {
    "tied and used twice": (Tied, once, {}),
    "frozen": (frozen, once, {}),
    "channels_last": (convnet, images, {}),
    "dtypes": (Dtypes, once, {"tolerance": 2e-2}),
    "autocast": (partial(lambda: mlp(6, 5, 4).float()), under_autocast, {"tolerance": 1e-6}),
    "checkpoint": (partial(Checkpointed, False), once, {}),
    "checkpoint, reentrant": (partial(Checkpointed, True), once, {}),
    "clipping": (partial(mlp, 6, 5, 4), clipped, {}),
    "two forwards, one backward": (partial(mlp, 6, 5, 4), two_forwards, {}),
    "two forwards, two backwards": (partial(mlp, 6, 5, 4), in_turns, {}),
    "one forward, two backwards": (partial(mlp, 6, 5, 4), retained, {}),
    "two forwards through BatchNorm": (normed, two_forwards, {}),
    "one of two forwards in no_sync": (partial(mlp, 6, 5, 4), half_quiet, {}),
    "one of two halves in no_sync": (Halves, halves_quiet, {}),
    "gradient penalty": (partial(mlp, 6, 5, 4), penalised, {}),
    "containers": (Containers, of_containers, {}),
    "dataclass": (Typed, of_typed, {}),
    "opaque output": (Opaque, of_opaque, {}),
    "create_graph": (partial(mlp, 6, 5, 4), with_graph, {}),
}


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_kind_of_module_and_of_backward(ranks: int) -> None:
    cases: dict[str, Case] = {}
    for (name, (build, train, extra)), view in product(MODULES.items(), (False, True)):
        options = {"gradient_as_bucket_view": view, **SMALL, **extra}
        cases[f"{name}, view {view}"] = partial(compare, build, train, **options)
    assert cases_fail(cases, ranks) == {}


def test_views_lie_in_the_buckets_also_in_no_sync_and_after_the_rebuild() -> None:
    def inside(ddp: DistributedDataParallel) -> bool:
        return all(
            p.grad is not None and p.grad.data_ptr() == bucket.views[p].data_ptr()
            for bucket in ddp.buckets
            for p in bucket.parameters
        )

    def run() -> list[bool]:
        found = []
        for view in (True, False):
            ddp = DistributedDataParallel(mlp(6, 5, 4), gradient_as_bucket_view=view, **SMALL)
            for step in range(3):
                ddp.zero_grad(set_to_none=step == 1)
                with ddp.no_sync():
                    once(ddp, dist.get_rank(), step + 100)
                found.append(inside(ddp))
                once(ddp, dist.get_rank(), step)
                found.append(inside(ddp))
        return found

    assert launch(run, 2) == [[True] * 6 + [False] * 6] * 2


def test_what_the_wrapper_tells_of_itself() -> None:
    def run() -> list[Any]:
        ddp = DistributedDataParallel(mlp(6, 5, 4), **SMALL)
        told: list[Any] = [ddp.steps, ddp.arrivals]
        for step in range(2):
            accumulated(ddp, dist.get_rank(), step)
        told += [ddp.steps, ddp.arrivals, repr(ddp.buckets[0])]
        return told

    for first, none, steps, arrivals, bucket in launch(run, 2):
        assert (first, none, steps) == (0, [], 2)
        assert sorted(arrivals) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert {name.split(".")[0] for name in arrivals[:2]} == {"2"}, "the last layer's come first"
        assert bucket.startswith(f"Bucket(0: {arrivals[0]}")


def test_without_checks_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    cases: dict[str, Case] = {
        "once": partial(compare, partial(mlp, 6, 5, 4), once, **SMALL),
        "buffers": partial(compare, normed, two_forwards, sync="bucketed"),
    }
    assert cases_fail(cases, 3) == {}
