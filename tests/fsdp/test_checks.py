"""What fully_shard refuses, and how it says so."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from minidist import DistributedDataParallel, MismatchError, RankError, fully_shard, launch
from minidist.parallel.fsdp.options import DtypePolicy
from tests.support.models import gpt, score, shard_blocks, tokens
from tests.support.training import mine


def says(action: Callable[[], object], *kinds: type[Exception]) -> str:
    """What it raises."""
    with pytest.raises(kinds or (TypeError, ValueError, RuntimeError)) as told:
        action()
    return f"{type(told.value).__name__}: {told.value}"


def pair() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def inner_last() -> Any:
    net = fully_shard(pair())
    return net[0]


def tied_apart() -> nn.Sequential:
    net = pair()
    net[1].weight = net[0].weight
    fully_shard(net[0])
    return net


def half_meta() -> nn.Sequential:
    net = pair()
    net[1].to("meta")
    return net


def dtensor() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = nn.Linear(4, 4)
    net.weight = nn.Parameter(distribute_tensor(net.weight.detach(), mesh, [Replicate()]))
    return net


WRONG: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "no module": (lambda: "net", {}, "TypeError: {}module: expected a torch.nn.Module, got a str"),
    "a list": (lambda: nn.ModuleList([pair()]), {}, "ValueError: {}module: a ModuleList has no "),
    "twice": (lambda: fully_shard(pair()), {}, "ValueError: {}module: it is a FSDPModule already"),
    "DDP inside": (
        lambda: nn.Sequential(DistributedDataParallel(pair())),
        {},
        "ValueError: {}module: its part '0' is a DistributedDataParallel already; wrap ",
    ),
    "the inner one last": (
        inner_last,
        {},
        "ValueError: {}module: its 'weight' is sharded already, as parameter '0.weight' of the "
        "outermost unit (Sequential); wrap the inner modules before the outer ones",
    ),
    "tied to another unit's": (
        tied_apart,
        {},
        "ValueError: {}module: parameter '1.weight' is tied to parameter 'weight' of the outermost "
        "unit (Linear); tied parameters must be in one unit",
    ),
    "no shape yet": (
        lambda: nn.Sequential(nn.LazyLinear(3)),
        {},
        "ValueError: {}module: '0.weight' has no shape yet; call the module once before",
    ),
    "two devices": (
        half_meta,
        {},
        "ValueError: {}module: expected all parameters on one device, got '0.weight' on cpu and "
        "'1.weight' on meta",
    ),
    "layout": (pair, {"layout": "dim1"}, "ValueError: {}layout must be one of dim0, flat, got"),
    "reshard to fewer": (
        pair,
        {"reshard_after_forward": 2},
        "TypeError: {}reshard_after_forward: expected True, False or None, got 2",
    ),
    "sparse gradients": (
        lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)),
        {},
        "ValueError: {}module: '0' has sparse gradients, which cannot be reduce-scattered; build "
        "it with sparse=False",
    ),
    "a DTensor": (
        dtensor,
        {},
        "TypeError: {}module: 'weight': expected a plain tensor, got a DTensor: is it sharded?",
    ),
    "no policy": (
        pair,
        {"mp_policy": "bf16"},
        "TypeError: {}mp_policy: expected a torch.distributed.fsdp.MixedPrecisionPolicy, got str",
    ),
    "a policy of integers": (
        pair,
        {"mp_policy": DtypePolicy(param_dtype=torch.int64)},
        "TypeError: {}mp_policy.param_dtype: expected a floating-point dtype, got torch.int64",
    ),
    "prefetch": (pair, {"prefetch": 1}, "TypeError: {}prefetch: expected True or False, got 1"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_wrapped() -> None:
    def run() -> dict[str, str]:
        return {
            name: says(lambda build=build, options=options: fully_shard(build(), **options))
            for name, (build, options, _) in WRONG.items()
        }

    for rank, said in enumerate(launch(run, 2)):
        for name, (_, _, want) in WRONG.items():
            assert said[name].startswith(want.format(f"rank {rank}: fully_shard: ")), said[name]


def test_different_wrapping_is_told_on_all_ranks() -> None:
    def wider(wide: int) -> nn.Module:
        return nn.Sequential(*[nn.Linear(2, 2) for _ in range(12)], nn.Linear(2, wide))

    def run() -> list[str]:
        rank = dist.get_rank()
        net = gpt()
        found = [says(lambda: fully_shard(wider(3 + rank % 2)), MismatchError)]
        fully_shard(net.blocks[rank % 2])
        found.append(says(lambda: fully_shard(net), MismatchError))
        layout = ["dim0", "flat"][rank % 2]
        found.append(says(lambda: fully_shard(pair(), layout=layout), MismatchError))
        found.append(says(lambda: fully_shard([pair, gpt][rank % 2]()), MismatchError))
        policy: Any = DtypePolicy(param_dtype=[torch.float64, torch.bfloat16][rank % 2])
        found.append(says(lambda: fully_shard(pair(), mp_policy=policy), MismatchError))
        return found

    start = "MismatchError: fully_shard: the ranks disagree on "
    for found in launch(run, 3):
        shape, inside, layout, kind, policy = found
        assert shape == (
            f"{start}parameter '12.weight': rank 1 passed (4, 2) torch.float32, requires grad; "
            "ranks 0, 2 passed (3, 2) torch.float32, requires grad"
        )
        assert inside == (
            f"{start}units inside: rank 1 passed blocks.1; ranks 0, 2 passed blocks.0"
        )
        assert layout == f"{start}layout: rank 1 passed flat; ranks 0, 2 passed dim0"
        assert kind == f"{start}module: rank 1 passed GPT; ranks 0, 2 passed Sequential"
        assert policy.startswith(f"{start}mp_policy: rank 1 passed")


def test_ranks_that_use_different_units_are_told() -> None:
    """Both units are alike, so that the numbers alone would go unnoticed."""

    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(pair())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.parts[dist.get_rank()](x)
            return out

    def run() -> None:
        net = Choice()
        for part in net.parts:
            fully_shard(part)
        fully_shard(net)
        net(torch.ones(2, 4))

    with pytest.raises(RankError, match=r"the ranks disagree on the call: .*unshard parts\.0"):
        launch(run, 2)


def test_a_parameter_that_is_used_while_sharded() -> None:
    def run() -> list[str]:
        net = shard_blocks(gpt())
        out, x = net.blocks[1].out, torch.ones(2, 12, dtype=torch.float64)
        with torch.no_grad():  # as an optimizer, a norm and a copy may
            out.weight.mul_(0.9).add_(torch.zeros_like(out.weight)).norm()
            out.weight.clone()
        out.weight.detach().square().sum()
        uses: list[Callable[[], object]] = [
            lambda: out(x),
            lambda: torch.no_grad()(out)(x),
            lambda: out.weight.square().sum(),
            lambda: x @ out.weight,
            lambda: net.norm(x),
        ]
        return [says(use, RuntimeError) for use in uses]

    for rank, (layer, quiet, square, product, root) in enumerate(launch(run, 2)):
        where = f"RuntimeError: rank {rank}: parameter "
        one = f"{where}'out.weight' of unit 'blocks.1' was used by "
        assert layer == quiet
        assert layer == (
            f"{one}linear while it is sharded: this rank has (6, 12) of (12, 12). Call the unit's "
            "module, not a part of it; or call its unshard() before, and reshard() after"
        )
        assert square.startswith(f"{one}square")
        assert product.startswith(one)
        assert root.startswith(f"{where}'norm.weight' of the outermost unit (GPT) was used by")


def test_a_parameter_as_it_was_before_wrapping() -> None:
    """Held by an optimizer, or by a module outside the unit."""

    def run() -> list[str]:
        net, outside = gpt(), pair()
        early = torch.optim.SGD(net.parameters(), lr=0.1)
        outside[1].weight = outside[0].weight
        shard_blocks(net)
        fully_shard(outside[0])  # and not the whole
        score(net, mine(tokens(0, 4))).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        uses: list[Callable[[], object]] = [early.step, early.zero_grad]
        return [says(use, RuntimeError) for use in [*uses, lambda: outside(torch.ones(2, 4))]]

    for rank, (step, zero, forward) in enumerate(launch(run, 2)):
        where = f"RuntimeError: rank {rank}: parameter "
        remedy = (
            "is used as it was before fully_shard. An optimizer must be built after it, from the "
            "module's parameters() of then; of modules that share a parameter, wrap one that holds "
            "them all, or wrap before tying"
        )
        assert step == f"{where}'token.weight' of the outermost unit (GPT) {remedy}"
        assert zero == step
        assert forward == f"{where}'weight' of the outermost unit (Linear) {remedy}"


def test_a_unit_whose_forward_records_nothing_gets_no_gradients() -> None:
    """As a bare module."""

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = pair()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = self.first(x)
            out: torch.Tensor = self.last(x)
            return out

    def run() -> list[bool]:
        net = Blind()
        fully_shard(net.first)
        fully_shard(net)(torch.ones(2, 4)).sum().backward()
        return [parameter.grad is None for parameter in net.parameters()]

    assert launch(run, 2) == [[True, True, False, False]] * 2


def test_outputs_and_backwards_that_it_cannot_follow() -> None:
    class Hides(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return SimpleNamespace(out=super().forward(x))

    def run() -> list[str]:
        x = torch.ones(2, 4, requires_grad=True)
        hides, net = fully_shard(Hides(4, 4)), fully_shard(pair())
        with torch.no_grad():
            hides(x)
        found = [says(lambda: hides(x), TypeError)]
        slope = lambda: torch.autograd.grad(net(x).sum(), x, create_graph=True)  # noqa: E731
        found.append(says(slope, RuntimeError))
        net(x).sum().backward()
        return [*found, str(net[0].weight.grad is None)]

    for rank, (hidden, twice, none) in enumerate(launch(run, 2)):
        assert hidden == (
            f"TypeError: rank {rank}: the outermost unit (Hides): its forward returned a "
            "SimpleNamespace, in which no tensor was found, so that nobody would notice its "
            "backward; return tensors, containers of them, or a dataclass"
        )
        assert twice.startswith(f"RuntimeError: rank {rank}: the outermost unit (Sequential): FSDP")
        assert "(create_graph=True)" in twice
        assert none == "False"


def test_shards_are_not_moved_or_replaced() -> None:
    def run() -> list[str]:
        def after(change: Callable[[Any], object]) -> str:
            net = nn.Sequential(fully_shard(nn.Linear(4, 4)))
            change(net)
            return says(lambda: net(torch.ones(1, 4)), RuntimeError)

        def replace(net: Any) -> None:
            net[0].weight = nn.Parameter(torch.ones(2, 4))

        def move(net: Any) -> None:
            net[0].weight.data = torch.ones(2, 4)

        net = nn.Sequential(fully_shard(nn.Linear(4, 4)))
        same = [net.to("cpu"), net.float(), net.requires_grad_(False), net.train(False)]
        assert all(each is net for each in same)
        net(torch.ones(1, 4))
        return [
            says(net.double),
            says(lambda: net.to_empty(device="meta")),
            after(replace),
            after(move),
        ]

    for rank, said in enumerate(launch(run, 2)):
        where = f"rank {rank}: the outermost unit (Linear): "
        for each in said[:2]:
            assert each.startswith(f"RuntimeError: {where}it cannot be moved or cast after fully_")
        for each in said[2:]:
            assert each.startswith(f"RuntimeError: {where}parameter 'weight' was replaced, moved")


def test_a_model_on_the_meta_device_must_be_materialized() -> None:
    def run() -> str:
        with torch.device("meta"):
            net = gpt()
        shard_blocks(net)
        assert all(parameter.is_meta for parameter in net.parameters())
        return says(lambda: net(tokens(0, 2)), RuntimeError)

    for rank, said in enumerate(launch(run, 2)):
        assert said.startswith(
            f"RuntimeError: rank {rank}: the outermost unit (GPT): its parameters are on the meta "
            "device, where they have no values; call minidist.materialize(module) on the root"
        )
