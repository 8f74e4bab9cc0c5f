"""The pages' tables of what the lesson does not notice: each row gives another result."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, mse_loss
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD

from from_scratch.context import attention
from from_scratch.ddp import OverlappedDDP
from from_scratch.expert import Experts
from from_scratch.fsdp import FSDP
from from_scratch.local_sgd import DiLoCo
from from_scratch.pipeline import Pipeline
from from_scratch.tensor import SplitBlock
from from_scratch.zero import ZeRO1, ZeRO2
from from_scratch.zero3 import ZeRO3
from minidist import Ours, RankError, launch
from minidist.schedule.pipeline import gpipe, sequence

WIDTH, NORM = 4, 0.1
Result = tuple[Any, Any]  # what this rank has, and what one process has


def batch() -> Tensor:
    return torch.arange(4.0 * WIDTH).view(4, WIDTH).sin()


def own() -> Tensor:
    return batch().chunk(2)[dist.get_rank()]


def two(*parts: nn.Module) -> tuple[Any, Any]:
    """A model, and a copy for one process, which has all gradients of the batch."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)), *parts)
    alone = deepcopy(net)
    alone(batch()).square().mean().backward()
    return net, alone


def norm_of(parameters: Any) -> Tensor:
    return clip_grad_norm_(list(parameters), NORM)


def stepped(wrap: Callable[[nn.Sequential], Any]) -> Result:
    """A weight that was frozen when it was wrapped, after a step."""
    net, alone = two()
    net[0].requires_grad_(False)
    model, optimizer, synchronize = wrap(net)
    net[0].requires_grad_(True)
    model(own()).square().mean().backward()
    synchronize()
    optimizer.step()
    SGD(alone.parameters(), 0.1).step()
    return net[0].weight, alone[0].weight


def skips(wrap: Callable[[nn.Sequential], Any]) -> Result:
    """The output after a step that rank 1 has skipped, say because its own loss was NaN."""
    net, alone = two()
    model, optimizer, synchronize = wrap(net)
    model(own()).square().mean().backward()
    synchronize()
    if dist.get_rank() == 0:
        optimizer.step()
    SGD(alone.parameters(), 0.1).step()
    with torch.no_grad():
        return model(own()), alone(own())


def ddp(net: nn.Sequential) -> Any:
    model = OverlappedDDP(net, Ours())
    return model, SGD(net.parameters(), 0.1), model.synchronize


def zero(net: nn.Sequential) -> Any:
    return net, ZeRO2(net.parameters(), SGD, Ours(), lr=0.1), int


def zero_3(net: nn.Sequential) -> Any:
    model = ZeRO3(net, Ours())
    return model, SGD(model.parameters(), 0.1), int


def fsdp(net: nn.Sequential) -> Any:
    model = FSDP(net, net, Ours())
    return model, SGD(model.shards, 0.1), model.synchronize


def clipped_early() -> Result:
    net, alone = two()
    OverlappedDDP(net, Ours())(own()).square().mean().backward()
    return norm_of(net.parameters()), norm_of(alone.parameters())


def unequal() -> Result:
    net, alone = two()
    model = OverlappedDDP(net, Ours())
    model(batch().split([1, 3])[dist.get_rank()]).square().mean().backward()
    model.synchronize()
    return net[0].weight.grad, alone[0].weight.grad


def statistics() -> Result:
    net, alone = two(nn.BatchNorm1d(WIDTH))
    OverlappedDDP(net, Ours())(own())
    return net[-1].running_mean, alone[-1].running_mean


def left_out() -> Result:
    net, alone = two()
    net[0].requires_grad_(False).weight.add_(dist.get_rank())
    ZeRO1(net[1].parameters(), SGD, Ours(), lr=0.1)
    return net[0].weight, alone[0].weight


def zero_norm(kind: type[ZeRO1]) -> Result:
    net, alone = two()
    optimizer = kind(net.parameters(), SGD, Ours(), lr=0.1)
    net(own()).square().mean().backward()
    found = norm_of(net.parameters())
    optimizer.step()
    return found, norm_of(alone.parameters())


def zero_3_norm() -> Result:
    net, alone = two()
    model = ZeRO3(net, Ours())
    model(own()).square().mean().backward()
    return norm_of(model.parameters()), norm_of(alone.parameters())


def fsdp_norm() -> Result:
    net, alone = two()
    model = FSDP(net, net, Ours())
    model(own()).square().mean().backward()
    model.synchronize()
    return norm_of(model.shards), norm_of(alone.parameters())


class Either(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        """Run one of the two layers."""
        return self[dist.get_rank()](x)  # type: ignore[no-any-return]


def other_units() -> Result:
    net, alone = Either(*two()[0]), Either(*two()[1])
    with torch.no_grad():
        return FSDP(net, net, Ours())(own()), alone(own())


def block_norm() -> Result:
    up, down = batch(), batch().T
    block, alone = SplitBlock([up], gelu, down, Ours()), [nn.Parameter(up), nn.Parameter(down)]
    block(batch()).square().mean().backward()
    (gelu(batch() @ alone[0].T) @ alone[1].T).square().mean().backward()
    return norm_of(block.parameters()), norm_of(alone)


def other_tokens() -> Result:
    up, down = batch(), batch().T
    return SplitBlock([up], gelu, down, Ours())(own()), gelu(own() @ up.T) @ down.T


def around_a_block() -> Result:
    up, down = batch(), batch().T
    block = SplitBlock([up], gelu, down, Ours())
    return OverlappedDDP(block, Ours())(batch()), gelu(batch() @ up.T) @ down.T


def in_two_blocks() -> Result:
    up, down = nn.Parameter(batch()), batch().T
    blocks = [SplitBlock([up], gelu, down, Ours()) for _ in range(2)]
    blocks[1](blocks[0](batch())).sum().backward()
    (gelu(gelu(batch() @ up.T) @ down.T @ up.T) @ down.T).sum().backward()
    return blocks[0].columns[0].grad, up.grad.chunk(2)[dist.get_rank()]  # type: ignore[union-attr]


def expert_norm() -> Result:
    layer = Experts(nn.Linear(WIDTH, 2), list(two()[0]), Ours())
    layer(own()).square().mean().backward()
    found = norm_of(layer.experts.parameters())
    squares = found**2
    dist.all_reduce(squares)
    return found, squares.sqrt()


def pipeline_norm() -> Result:
    net, alone = two()
    pipeline = Pipeline(net, 2, torch.empty(2, WIDTH))
    pipeline.step(sequence(gpipe(2, 2)), batch(), torch.zeros(4, WIDTH), mse_loss)
    return norm_of(pipeline.parameters()), norm_of(alone.parameters())


def after_rounds(every: int, lr: float, buffers: bool = False) -> Result:
    """What this rank has after two rounds, and what rank 0 has."""
    net, _ = two(*[nn.BatchNorm1d(WIDTH)] * buffers)
    optimizer = DiLoCo(SGD(net.parameters(), 0.1), Ours(), every, lr)
    for _ in range(2 * every):
        net(own() + dist.get_rank()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    mine = torch.cat([each.flatten() for each in (net.buffers() if buffers else net.parameters())])
    first = mine.detach().double()
    dist.broadcast(first, 0)
    return mine.detach().double(), first


def outer_rates() -> Result:
    return after_rounds(2, 0.5 + 0.1 * dist.get_rank())


def other_rounds() -> Result:
    return after_rounds(2 + dist.get_rank(), 0.7)[0], after_rounds(2, 0.7)[0]


def kept_buffers() -> Result:
    return after_rounds(2, 0.7, buffers=True)


SKIPS = "a rank that skips `optimizer.step()` alone"
LATER = "a parameter that is frozen at first, and trainable later"
ROWS: dict[str, dict[str, tuple[Callable[..., Result], Any]]] = {
    "ddp": {
        LATER: (stepped, ddp),
        SKIPS: (skips, ddp),
        "`clip_grad_norm_` before `synchronize`": (clipped_early, None),
        "unequal numbers of samples": (unequal, None),
        "buffers that change in training": (statistics, None),
    },
    "zero": {
        "buffers, and frozen parameters that are not in `params`": (left_out, None),
        "`clip_grad_norm_` before `step`, in stage 1": (zero_norm, ZeRO1),
        "`clip_grad_norm_` before `step`, in stage 2": (zero_norm, ZeRO2),
        "`clip_grad_norm_` before `step`, in stage 3": (zero_3_norm, None),
        LATER: (stepped, zero),
        f"{SKIPS}, in stage 3": (skips, zero_3),
    },
    "fsdp": {
        "`clip_grad_norm_(model.shards)`": (fsdp_norm, None),
        "ranks that run equal units in different orders": (other_units, None),
        LATER: (stepped, fsdp),
        SKIPS: (skips, fsdp),
    },
    "experts": {"`clip_grad_norm_(layer.parameters())` of `Experts`": (expert_norm, None)},
    "tensor": {
        "`clip_grad_norm_` of `block.parameters()`": (block_norm, None),
        "other tokens on each rank, without `sequence`": (other_tokens, None),
        "DDP among the ranks that share a layer": (around_a_block, None),
        "one weight in two blocks": (in_two_blocks, None),
    },
    "keep_going": {
        "another outer `lr` or `momentum` on a rank": (outer_rates, None),
        "another `every` on a rank": (other_rounds, None),
        "buffers that change in training": (kept_buffers, None),
    },
    "pipelines": {"`clip_grad_norm_` of `pipeline.parameters()`": (pipeline_norm, None)},
}


def results(page: str) -> list[Result]:
    return [call(*filter(None, [given])) for call, given in ROWS[page].values()]


@pytest.mark.parametrize("page", ROWS)
def test_what_is_not_noticed_is_another_result_and_stands_on_the_page(page: str) -> None:
    text = (Path(__file__).parents[2] / "book" / f"{page}.md").read_text()
    table = text.partition(" does not notice\n")[2].partition(":::")[0]
    for row, *of_ranks in zip(ROWS[page], *launch(results, 2, page), strict=True):
        assert not all(torch.allclose(*each) for each in of_ranks), row
        assert f"| {row}" in table, row


def test_sequences_of_different_lengths_end_a_rank() -> None:
    page = (Path(__file__).parents[2] / "book" / "sequences.md").read_text()
    assert "| sequences of different lengths in `attention` |" in page
    with pytest.raises(RankError, match="killed by SIGABRT"):
        launch(lambda: attention(*[torch.ones(2 + dist.get_rank(), WIDTH)] * 3), 2)
