"""The small GPT that benchmarks train: some ways to train it, in turns, in one process group.

Each way trains its own copy on the same text: a step is forward, backward and the optimizer's
update. A rank reads other rows than its peers, but the same ones in every way, so the ways' losses
must agree: what is timed is the same training.
"""

import os
from collections.abc import Callable, Collection
from functools import cache

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from benchmarks import turns
from benchmarks.record import Row
from course.training.data import characters, text
from course.training.models import GPT

WIDTH, LAYERS, CONTEXT, BATCH = 192, 4, 64, 4
STEPS, ROUNDS = 3, 15  # in a turn; turns of each way
FIRST = 20  # steps of which the losses are compared
RANKS = (2, 4)

Way = Callable[[GPT], tuple[nn.Module, Optimizer]]  # what wraps a model, and what updates it
Seen = tuple[dict[str, list[turns.Span]], dict[str, list[float]]]  # turns and losses of each way


@cache
def corpus() -> tuple[torch.Tensor, int]:
    """The text as ids, and how many different ones there are."""
    ids, alphabet = characters(text())
    return ids, len(alphabet)


def model(width: int = WIDTH, layers: int = LAYERS, device: str = "cpu") -> GPT:
    """The same on every rank and in every way; on "meta" without memory."""
    torch.manual_seed(0)
    vocab = corpus()[1]
    with torch.device(device):
        return GPT(vocab, width, layers, heads=4, context=CONTEXT)


class Training:
    """One way's training. `losses`: this rank's, step by step."""

    def __init__(self, way: Way, module: GPT, batch: int = BATCH, context: int = CONTEXT) -> None:
        self._model, self._optimizer = way(module)
        self._shape = batch, context + 1
        self._draw = torch.Generator().manual_seed(dist.get_rank())  # every rank reads other rows
        self.losses: list[float] = []

    def step(self) -> None:
        """One step; its gradients stay until the next."""
        (ids, _), (batch, length) = corpus(), self._shape
        starts = torch.randint(len(ids) - length, (batch, 1), generator=self._draw)
        rows = ids[starts + torch.arange(length)]
        self._optimizer.zero_grad()
        scores = self._model(rows[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())


def in_turns(ways: dict[str, Way], rounds: int, width: int = WIDTH, steps: int = STEPS) -> Seen:
    """On a rank: way → its turns, and way → its losses."""
    os.environ["MINIDIST_CHECK"] = "0"  # torch does not check either
    trainings = {name: Training(way, model(width)) for name, way in ways.items()}
    spans = turns.spans({name: each.step for name, each in trainings.items()}, steps, rounds)
    return spans, {name: each.losses for name, each in trainings.items()}


def times(of_ranks: list[Seen], against: str, steps: int = STEPS) -> list[Row]:
    """For each way quartiles of a step in milliseconds, and the ratio of medians."""
    spans = [seen for seen, _ in of_ranks]
    found = {way: turns.quartiles([rank[way] for rank in spans], steps) for way in spans[0]}
    return [
        {
            "way": way,
            "ms": [round(1e3 * t, 2) for t in quartiles],
            "ratio": round(quartiles[1] / found[against][1], 3),
        }
        for way, quartiles in found.items()
    ]


def alike(of_ranks: list[Seen], against: str, but: Collection[str] = ()) -> None:
    """What was timed must have been the same training, on every rank.

    The first steps tell: later ones magnify what ways round differently, in fp32 by AdamW.

    Raises:
        AssertionError: the losses of a way, unless it is in `but`, are not those of `against`.
    """
    for rank, (_, losses) in enumerate(of_ranks):
        want = torch.tensor(losses[against][:FIRST])
        for way in losses.keys() - set(but):
            found = torch.tensor(losses[way][:FIRST])
            if not torch.allclose(found, want, rtol=1e-3, atol=1e-3):  # not so for NaN
                raise AssertionError(f"rank {rank}: {way}: losses {found}, {against}'s {want}")
