"""The capstone's task: the model, its data, the cluster, and the budget."""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from minidist.planner.hardware import Accelerator
from minidist.planner.planner import ROOM
from minidist.planner.sizes import Sizes
from minidist.train.gpt import GPT
from minidist.train.text import characters, rows_of, text

WIDTH, LAYERS, HEADS, CONTEXT = 128, 4, 4, 32
ROWS = 8  # in a step, on all ranks together
STEPS = 34  # in the run
RATE = 1e-3  # AdamW's learning rate: with twice as much, rounding alone can change late losses
SEED = 0  # for the first weights and the rows of a run; a rerun draws another

# Operations per token in a block's forward: its matrices, then causal attention.
BLOCK_OPERATIONS = 24 * WIDTH**2 + 2 * CONTEXT * WIDTH


class Budget(NamedTuple):
    """Limits of a run."""

    held: int  # bytes on a rank, at most
    seconds: float  # for the whole run, on the cluster's clock


BUDGET = Budget(held=11_000_000, seconds=8.0)

RANKS = 4
MACHINE = Accelerator(  # a rank's
    name="emulated rank",
    flops=8e9,
    memory=BUDGET.held / ROOM,  # so that a step may take all of the budget
    bandwidth=1e12,  # its memory's: so large that it plays no part
    nvlink=200e6,
    network=10e6,
    per_node=2,
    nvlink_latency=50e-6,
    network_latency=500e-6,
    utilization=1.0,
    half_width=0,
)


@cache
def corpus() -> tuple[Tensor, str]:
    """The text as numbers, and its alphabet."""
    return characters(text())


def model(seed: int = SEED) -> GPT:
    """The GPT with its first weights, the same in every process."""
    torch.manual_seed(seed)
    return GPT(len(corpus()[1]), WIDTH, LAYERS, HEADS, CONTEXT)


def sizes() -> Sizes:
    """The model's sizes, for `minidist.plan`."""
    return Sizes.gpt(LAYERS, WIDTH, len(corpus()[1]), CONTEXT)


def rows(step: int, part: int, parts: int, seed: int = SEED) -> Tensor:
    """A part of a step's rows, [ROWS / parts, CONTEXT + 1]."""
    ids, _ = corpus()
    return rows_of(ids, step, rows=ROWS, context=CONTEXT, seed=seed, rank=part, ranks=parts)


def loss_of(net: Any, rows: Tensor) -> Tensor:
    """The mean loss of predicting each next token in some rows."""
    return cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@cache
def alone(steps: int, seed: int = SEED) -> tuple[float, ...]:
    """The losses of one process that trains on the whole batch: the oracle."""
    net, threads = model(seed), torch.get_num_threads()
    optimizer = torch.optim.AdamW(net.parameters(), RATE)
    losses = []
    torch.set_num_threads(1)  # more wait for each other, with so small a model
    for step in range(steps):
        loss = loss_of(net, rows(step, 0, 1, seed))
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    return tuple(losses)
