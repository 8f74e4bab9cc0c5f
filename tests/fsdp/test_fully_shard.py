"""fully_shard: what it sends and holds, and when; `tests/proof` sees that it trains right."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils

from minidist import full_gradients, fully_shard, launch
from minidist.parallel.fsdp.fully_shard import FSDPModule, units
from minidist.parallel.fsdp.shard import Shard
from minidist.parallel.fsdp.unit import ShardedState, TrainingState, Unit
from tests.support.models import gpt, score, shard_blocks, tokens
from tests.support.training import far, grads_of, mine


def test_the_outermost_unit_may_be_kept_alone_and_may_accumulate_alone() -> None:
    def run() -> list[Any]:
        net = shard_blocks(gpt(), reshard_after_forward=None)
        net.set_requires_gradient_sync(False, recurse=False)
        loss = score(net, mine(tokens(0, 4)))
        kept = [unit.name for unit in units(net) if unit.training is TrainingState.POST_FORWARD]
        loss.backward()
        return [kept, *(p.grad is None for p in (net.token.weight, net.blocks[0].qkv.weight))]

    assert launch(run, 2) == [[["root"], True, False]] * 2


# ---- when it sends, and what it holds ----


def test_the_next_unit_is_gathered_while_this_one_computes() -> None:
    """The first forward has no order to go by; those after it, and all backwards, do."""

    def run() -> list[list[str]]:
        net = shard_blocks(gpt())
        events: list[str] = []
        for unit in units(net):
            begin = unit.begin_unshard

            def log(async_op: bool = True, unit: Any = unit, begin: Any = begin) -> None:
                if unit.sharded is ShardedState.SHARDED:
                    events.append(unit.name)
                begin(async_op)

            unit.begin_unshard = log  # type: ignore[method-assign]
        for index, block in enumerate(net.blocks):
            name = f"compute {index}"
            block.norm.register_forward_hook(lambda *_, name=name: events.append(name))
            block.mlp.register_full_backward_hook(lambda *_, name=name: events.append(name))
        found = []
        for step in range(2):
            loss = score(net, mine(tokens(step, 4)))
            found.append([events.pop(0) for _ in list(events)])
            loss.backward()
            found.append([events.pop(0) for _ in list(events)])
        return found

    b = [f"blocks.{index}" for index in range(3)]
    c = [f"compute {index}" for index in range(3)]
    plain = ["root", b[0], c[0], b[1], c[1], b[2], c[2]]
    ahead = ["root", b[0], b[1], c[0], b[2], c[1], c[2]]
    back = ["root", b[2], b[1], c[2], b[0], c[1], c[0]]
    assert launch(run, 2) == [[plain, back, ahead, back]] * 2


def held(unit: Unit) -> int:
    """Bytes of the memory under the unit's whole parameters."""
    whole = [parameter for group in unit.groups for parameter in group.unsharded]
    under = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in whole}
    return sum(under.values())


def test_a_resharded_unit_holds_its_shard_and_at_most_two_are_whole() -> None:
    """Looked at in every forward and backward of a layer, and at the end."""

    def run() -> list[Any]:
        net = shard_blocks(gpt())
        inner, seen = units(net)[1:], list[int]()

        def look(*_: Any) -> None:
            seen.append(sum(unit.sharded is not ShardedState.SHARDED for unit in inner))
            for unit in inner:
                whole = unit.sharded is ShardedState.UNSHARDED
                assert (held(unit) > 0) == whole, unit.name

        for block in net.blocks:
            block.norm.register_forward_hook(look)
            block.mlp.register_full_backward_hook(look)
        for step in range(2):
            net.zero_grad()
            score(net, mine(tokens(step, 4))).backward()
        return [max(seen), len(seen), sum(map(held, units(net)))]

    assert launch(run, 2) == [[2, 12, 0]] * 2


def test_a_backward_through_freed_parameters_is_an_error() -> None:
    """And no read of memory that is not there: the norm's weight is read element by element."""

    def run() -> None:
        net = fully_shard(nn.LayerNorm(4))
        net.unshard()
        x = torch.ones(2, 4, requires_grad=True)
        out = nn.functional.layer_norm(x, (4,), net.weight, net.bias).sum()
        net.reshard()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()
        net.unshard()
        out.backward()

    launch(run, 2)


# ---- the module's own methods, and what is round a step ----


def test_unshard_and_reshard_by_hand_and_names() -> None:
    def run() -> None:
        net, bare = shard_blocks(gpt()), gpt()
        block = net.blocks[0]
        shard = block.out.weight
        block.unshard(async_op=True).wait()
        whole = block.out.weight
        assert torch.equal(whole, bare.blocks[0].out.weight)
        assert isinstance(shard, Shard)
        assert isinstance(net.token.weight, Shard), "its own parameters alone"
        block.reshard()
        block.reshard()
        assert block.out.weight is shard
        assert whole.untyped_storage().nbytes() == 0
        block.unshard()
        assert block.out.weight is whole
        assert torch.equal(net(mine(tokens(0, 4))), bare(mine(tokens(0, 4))))

        layers = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        names = list(dict(layers.named_parameters()))
        fully_shard(layers[1])
        fully_shard(layers)
        assert list(dict(layers.named_parameters())) == names
        assert [unit.name for unit in units(layers)] == ["root", "1"]
        assert isinstance(layers, FSDPModule)
        assert isinstance(layers, nn.Sequential)
        assert (type(layers).__name__, type(layers[:1])) == ("FSDPSequential", nn.Sequential)
        for module in (optimizers, _foreach_utils):  # so that many are updated at once on a GPU
            assert module._foreach_supported_types.count(Shard) == 1

    launch(run, 2)


def test_hooks_on_shards_and_zero_grad_while_the_parameters_are_whole() -> None:
    """A hook may step on each and free it, in backward; `zero_grad` reaches shards and sums."""

    def run() -> list[Any]:
        net, bare = shard_blocks(gpt(), reshard_after_forward=False), gpt()
        score(net, mine(tokens(0, 4))).backward()
        shards = [shard for unit in units(net) for group in unit.groups for shard in group.shards]
        score(net, mine(tokens(0, 4)))  # no backward follows
        net.zero_grad(set_to_none=False)
        zeros = all(shard.grad is not None and not shard.grad.to_local().any() for shard in shards)
        net.set_requires_gradient_sync(False)
        score(net, mine(tokens(1, 4))).backward()  # kept, and dropped
        net.zero_grad()
        net.set_requires_gradient_sync(True)
        score(net, mine(tokens(2, 4))).backward()
        score(bare, tokens(2, 4)).backward()
        found, called = [zeros, far(full_gradients(net), grads_of(bare))], []

        def step(shard: torch.Tensor) -> None:
            called.append(shard.grad is not None)
            shard.grad = None

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        score(net, mine(tokens(0, 4))).backward()
        return [*found, called == [True] * 40, all(p.grad is None for p in net.parameters())]

    assert launch(run, 2) == [[True, "", True, True]] * 2
