"""A training step under minidist's DDP and under torch's, in turns, in one process group.

Each way trains its own copy of one small GPT on the same text: a step is forward, backward and the
optimizer's update. `alone` trains without talking to anybody: what is above it is communication.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import minidist
from benchmarks import turns
from benchmarks.record import Row
from course.allocated import allocated
from course.data import characters, text
from course.models import GPT
from minidist.comm import Native
from minidist.timeline import Span, hidden, timeline

WIDTH, LAYERS, CONTEXT, BATCH = 192, 4, 64, 4
STEPS, ROUNDS = 3, 15  # in a turn; turns of each way
CAP = 1  # MiB of a bucket: with torch's 25 the whole model would be in two
SYNC = ("overlapped", "bucketed", "flat", "naive")
RANKS = (2, 4)
TRIES = 3

Wrap = Callable[[torch.nn.Module], torch.nn.Module]


def ours(**options: Any) -> Wrap:
    """Wrap in our DDP."""
    return partial(minidist.DistributedDataParallel, bucket_cap_mb=CAP, **options)


def torchs(**options: Any) -> Wrap:
    """Wrap in torch's DDP."""
    return partial(torch.nn.parallel.DistributedDataParallel, bucket_cap_mb=CAP, **options)


@cache
def corpus() -> tuple[torch.Tensor, int]:
    """The text as ids, and how many different ones there are."""
    ids, alphabet = characters(text())
    return ids, len(alphabet)


def model() -> GPT:
    """The same on every rank and in every way."""
    torch.manual_seed(0)
    return GPT(corpus()[1], WIDTH, LAYERS, heads=4, context=CONTEXT)


class Training:
    """One way's training. `losses`: this rank's, step by step."""

    def __init__(
        self, wrapped: torch.nn.Module, batch: int = BATCH, context: int = CONTEXT
    ) -> None:
        self._model, self._shape = wrapped, (batch, context + 1)
        self._optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
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


def in_turns(rounds: int) -> tuple[dict[str, list[turns.Span]], dict[str, list[float]]]:
    """On a rank: way → its turns, and way → its losses."""
    os.environ["MINIDIST_CHECK"] = "0"  # torch does not check either
    wraps: dict[str, Wrap] = {"torch": torchs(), "alone": lambda module: module}
    wraps |= {sync: ours(sync=sync) for sync in SYNC}
    wraps["overlapped, native"] = ours(comm=Native())
    trainings = {way: Training(wrap(model())) for way, wrap in wraps.items()}
    spans = turns.spans({way: each.step for way, each in trainings.items()}, STEPS, rounds)
    return spans, {way: each.losses for way, each in trainings.items()}


def recorded() -> dict[str, list[Span]]:
    """On a rank: sync → what ran when in some steps, after some that warm up."""
    os.environ["MINIDIST_CHECK"] = "0"
    found = {}
    for sync in SYNC:
        training = Training(ours(sync=sync)(model()))
        for _ in range(STEPS):
            training.step()
        with timeline() as line:
            for _ in range(STEPS):
                training.step()
        found[sync] = line.spans
    return found


def memory(whose: str, views: bool) -> Row:
    """On a rank: bytes that a wrapper and its steps allocate beside the model, held and at most.

    With one short row of text, so that it is gradients and buckets and hardly anything else.
    """
    os.environ["MINIDIST_CHECK"] = "0"
    wrap = {"minidist": ours, "torch": torchs}[whose](gradient_as_bucket_view=views)
    module = model()

    def begin() -> Training:
        training = Training(wrap(module), batch=1, context=8)
        minidist.barrier()  # lets go of the broadcast's tensor, and in this thread: that is seen
        for _ in range(STEPS):
            training.step()
        return training

    training, before = allocated(begin)
    held = before[-1][1]
    _, curve = allocated(training.step)  # what it frees first counts below zero
    return {
        "gradient_bytes": sum(parameter.nbytes for parameter in module.parameters()),
        "held_bytes": held,
        "peak_bytes": held + max(size for _, size in curve),
    }


def _memories() -> Iterator[Row]:
    """What another thread frees is not seen: of some tries, each in new processes, the least."""
    for whose, views in product(("minidist", "torch"), (False, True)):
        ranks = RANKS[0]
        tries = [minidist.launch(memory, ranks, whose, views, device="cpu") for _ in range(TRIES)]
        least = {key: min(row[key] for rows in tries for row in rows) for key in tries[0][0]}
        yield {"what": "memory", "ranks": ranks, "way": whose, "views": views, **least}


def measure(rounds: int = ROUNDS) -> list[Row]:
    """Quartiles of a step in milliseconds and the ratio of the medians to torch's; the rest once.

    Raises:
        AssertionError: ways that average gradients did not train alike.
    """
    rows: list[Row] = []
    for ranks in RANKS:
        of_ranks = minidist.launch(in_turns, ranks, rounds, device="cpu", timeout=600)
        for _, losses in of_ranks:
            _alike(losses)
        rows += _steps(ranks, rounds, [spans for spans, _ in of_ranks])
        told = minidist.launch(recorded, ranks, device="cpu", timeout=600)
        for sync in SYNC:
            share = hidden(span for rank in told for span in rank[sync])
            rows.append({"what": "hidden", "ranks": ranks, "way": sync, "share": round(share, 3)})
    return rows + list(_memories())


def _steps(ranks: int, rounds: int, of_ranks: list[dict[str, list[turns.Span]]]) -> list[Row]:
    times = {way: turns.quartiles([rank[way] for rank in of_ranks], STEPS) for way in of_ranks[0]}
    much = {"cap_mib": CAP, "rounds": rounds, "steps": STEPS}
    return [
        {
            "what": "step",
            "ranks": ranks,
            "way": way,
            "ms": [round(1e3 * t, 2) for t in quartiles],
            "ratio": round(quartiles[1] / times["torch"][1], 3),
            **much,
        }
        for way, quartiles in times.items()
    ]


def _alike(losses: dict[str, list[float]]) -> None:
    """What was timed must have been the same training."""
    want = torch.tensor(losses["torch"])
    for way in losses.keys() - {"alone"}:
        torch.testing.assert_close(torch.tensor(losses[way]), want, rtol=1e-3, atol=1e-3, msg=way)
