"""What `fully_shard` refuses in use; wrong arguments are in `test_wrapping_checks`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard as fsdp2

from minidist import MismatchError, RankError, fully_shard, launch
from tests.support.models import gpt, score, shard_blocks, tokens
from tests.support.refusals import says
from tests.support.training import mine


def pair() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_different_wrapping_is_told_on_all_ranks() -> None:
    def wider(wide: int) -> nn.Module:
        return nn.Sequential(*[nn.Linear(2, 2) for _ in range(12)], nn.Linear(2, wide))

    def run() -> list[str]:
        odd = dist.get_rank() % 2
        net = gpt()
        found = [says(lambda: fully_shard(wider(3 + odd)), MismatchError)]
        fully_shard(net.blocks[odd])
        found.append(says(lambda: fully_shard(net), MismatchError))
        kept = odd == 1
        said = says(lambda: fully_shard(pair(), reshard_after_forward=kept), MismatchError)
        return [*found, said]

    start = "MismatchError: fully_shard: the ranks disagree on "
    for shape, inside, option in launch(run, 3):
        assert shape == (
            f"{start}parameter '12.weight': rank 1 passed (4, 2) torch.float32, requires grad; "
            "ranks 0, 2 passed (3, 2) torch.float32, requires grad"
        )
        assert inside == (
            f"{start}units inside: rank 1 passed blocks.1; ranks 0, 2 passed blocks.0"
        )
        assert option == (
            f"{start}reshard_after_forward: rank 1 passed True; ranks 0, 2 passed False"
        )


def test_ranks_that_use_different_units_are_told_or_mix_them_as_torch_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blocks are alike, so that the numbers alone would go unnoticed."""

    def run(shard: Callable[[nn.Module], object]) -> torch.Tensor:
        net = pair()
        for part in (*net, net):
            shard(part)
        with torch.no_grad():
            return net[dist.get_rank()](torch.ones(4))  # type: ignore[no-any-return]

    with pytest.raises(RankError, match=r"the ranks disagree on the call: .*unshard 0"):
        launch(run, 2, fully_shard)
    monkeypatch.setenv("MINIDIST_CHECK", "0")
    ours, theirs = (launch(run, 2, shard, device="cpu") for shard in (fully_shard, fsdp2))
    right = [part(torch.ones(4)) for part in pair()]
    for mixed, as_torch, own in zip(ours, theirs, right, strict=True):
        assert torch.allclose(mixed, as_torch)
        assert not torch.allclose(mixed, own)


@pytest.mark.claim("E9")
def test_a_parameter_that_is_used_while_sharded_or_as_it_was_before() -> None:
    """The latter is held by an optimizer, or by a module outside the unit."""

    def run() -> list[str]:
        net, outside = gpt(), pair()
        early = torch.optim.SGD(net.parameters(), lr=0.1)
        outside[1].weight = outside[0].weight
        shard_blocks(net)
        fully_shard(outside[0])  # and not the whole
        score(net, mine(tokens(0, 4))).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        out, x = net.blocks[1].out, torch.ones(2, 12, dtype=torch.float64)
        with torch.no_grad():  # as an optimizer and a copy may
            out.weight.mul_(0.9).add_(torch.zeros_like(out.weight)).clone()
        out.weight.to_local().square().sum()
        uses: dict[str, Callable[[], object]] = {
            "'out.weight' of unit 'blocks.1' was used by linear while it is": lambda: out(x),
            "'out.weight' of unit 'blocks.1' was used by linear": lambda: torch.no_grad()(out)(x),
            "'out.weight' of unit 'blocks.1' was used by sq": lambda: out.weight.square().sum(),
            "'out.weight' of unit 'blocks.1' was used by ": lambda: x @ out.weight,
            "'norm.weight' of the outermost unit (GPT) was used by": lambda: net.norm(x),
            "'token.weight' of the outermost unit (GPT) is used as it was": early.step,
            "'token.weight' of the outermost unit (GPT) is used as": early.zero_grad,
            "'weight' of the outermost unit (Linear) is used as it": lambda: outside(
                torch.ones(2, 4)
            ),
        }
        start = f"RuntimeError: rank {dist.get_rank()}: parameter "
        said = {want: says(use, RuntimeError) for want, use in uses.items()}
        assert [each for want, each in said.items() if not each.startswith(start + want)] == []
        return list(said.values())

    for said in launch(run, 2):
        assert said[0].endswith(
            "while it is sharded: this rank has (6, 12) of (12, 12). Call the unit's module, not a "
            "part of it; or call its unshard() before, and reshard() after"
        )
        assert said[5].endswith(
            "before fully_shard. An optimizer must be built after it, from the module's "
            "parameters() of then; modules that share a parameter must be sharded together: "
            "fully_shard([one, other])"
        )


class Hides(nn.Linear):
    """What it returns is in nothing that can be looked into."""

    def forward(self, x: torch.Tensor) -> Any:
        return SimpleNamespace(out=super().forward(x))


def test_outputs_and_backwards_that_it_cannot_follow() -> None:
    def run() -> list[str]:
        x = torch.ones(2, 4, requires_grad=True)
        hides, net = fully_shard(Hides(4, 4)), fully_shard(pair())
        with torch.no_grad():
            hides(x)
        slope = lambda: torch.autograd.grad(net(x).sum(), x, create_graph=True)  # noqa: E731
        said = [says(lambda: hides(x), TypeError), says(slope, RuntimeError)]
        net(x).sum().backward()
        assert not any(p.grad is None for p in net.parameters())
        return said

    for rank, (hidden, twice) in enumerate(launch(run, 2)):
        start = f"rank {rank}: the outermost unit"
        assert f"{start} (Hides): its forward returned a SimpleNamespace, in which no" in hidden
        assert f"{start} (Sequential): FSDP" in twice
        assert "(create_graph=True)" in twice


def test_shards_are_not_moved_or_replaced_and_have_values() -> None:
    def replace(net: Any) -> None:
        net[0].weight = nn.Parameter(torch.ones(2, 4))

    def move(net: Any) -> None:
        net[0].weight.data = torch.ones(2, 4)

    def run() -> list[str]:
        def after(change: Callable[[Any], object]) -> str:
            net = nn.Sequential(fully_shard(nn.Linear(4, 4)))
            change(net)
            return says(lambda: net(torch.ones(1, 4)), RuntimeError)

        net = nn.Sequential(fully_shard(nn.Linear(4, 4)))
        same = [net.to("cpu"), net.float(), net.requires_grad_(False), net.train(False)]
        assert all(each is net for each in same)
        net(torch.ones(1, 4))
        meta = fully_shard(nn.Linear(4, 4, device="meta"))
        return [
            after(lambda net: net.double()),
            after(replace),
            after(move),
            says(lambda: meta(torch.ones(1, 4)), RuntimeError),
        ]

    replaced = "parameter 'weight' was replaced, moved or cast after wrapping"
    wants = [*[replaced] * 3, "its parameters are on the meta device, where they"]
    for rank, said in enumerate(launch(run, 2)):
        for each, want in zip(said, wants, strict=True):
            assert each.startswith(
                f"RuntimeError: rank {rank}: the outermost unit (Linear): {want}"
            )


def test_a_hook_that_would_never_be_called_is_refused() -> None:
    def run() -> list[str]:
        before, after = pair(), pair()
        before[0].weight.register_hook(lambda gradient: gradient / 2)
        found = [says(lambda: fully_shard(before), ValueError)]
        fully_shard(after)
        found.append(says(lambda: after[1].bias.register_hook(lambda gradient: None)))
        return found

    for rank, (lost, unheard) in enumerate(launch(run, 2)):
        assert "module: its '0.weight' has a hook, which its shard would not have" in lost
        assert f"rank {rank}: parameter '1.bias' of " in unheard
        assert "register_hook would never call it" in unheard
