"""from_scratch trains as one process does that has the whole batch."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW

from from_scratch import ring
from minidist import Ours, launch
from tests.from_scratch.ways import FROM_SCRATCH, MODELS, RATE, ROWS, WITHOUT_GROUPS, groups
from tests.support.training import far, numbers

STEPS = 4


def weights_of(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def beside_one_process(model_name: str, way: str) -> str:
    """What is wrong after some steps; "" if nothing."""
    build, loss = MODELS[model_name]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    net = build()
    alone = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(rank)  # rank 0's must win
    wrapped = FROM_SCRATCH[way](net, Ours(algorithm="ring"))
    optimizer = AdamW(alone.parameters() if way in WITHOUT_GROUPS else groups(alone), RATE)
    mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    for step in range(STEPS):
        value = loss(wrapped.model, step, mine)
        value.backward()
        wrapped.synchronize()
        wrapped.optimizer.step()
        wrapped.optimizer.zero_grad()
        right = loss(alone, step, slice(None))
        right.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = value.detach() / ranks
        dist.all_reduce(mean)
        if wrong := far({"loss": mean}, {"loss": right.detach()}):
            return f"step {step}: {wrong}"
    found: Any = wrapped.weights() if wrapped.weights else weights_of(net)
    return far({name: each.detach() for name, each in found.items()}, weights_of(alone))


def all_ways() -> dict[str, str]:
    found = {
        f"{model}, {way}": beside_one_process(model, way)
        for model in MODELS
        for way in FROM_SCRATCH
    }
    return {what: wrong for what, wrong in found.items() if wrong}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_trains_as_one_process_does(ranks: int) -> None:
    assert launch(all_ways, ranks) == [{}] * ranks


def rings() -> str:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for numel in (0, 1, ranks - 1, ranks, ranks + 1, 17):
        summed = numbers(rank, 0, numel)
        ring.all_reduce(summed)
        want = torch.stack([numbers(r, 0, numel) for r in range(ranks)]).sum(0)
        if wrong := far({"all_reduce": summed}, {"all_reduce": want}):
            return f"{numel}: {wrong}"
    table = torch.stack([numbers(r, 0, ranks, 3) for r in range(ranks)])
    part, whole = table.new_empty(3), table.new_empty(ranks, 3)
    ring.reduce_scatter(part, table[rank])
    ring.all_gather(whole, part)
    return far({"part": part, "whole": whole}, {"part": table.sum(0)[rank], "whole": table.sum(0)})


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_the_ring_adds_up(ranks: int) -> None:
    assert launch(rings, ranks) == [""] * ranks
