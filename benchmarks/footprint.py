"""What a rank holds while it trains the small GPT, and its peak: as predicted, and as measured.

It is torch's allocator that tells. What a process takes once, whatever it trains, such as buffers
for messages, does not count: the training of a tiny model has made it take that before.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import minidist
from benchmarks.record import Row
from benchmarks.small_gpt import BATCH, CONTEXT, LAYERS, STEPS, WIDTH, Training, Way, corpus, model
from course.training.models import GPT
from minidist.memory.activations import expected
from minidist.memory.meter import Meter
from minidist.memory.predict import predict

TINY = 16  # width
TRIES = 2
SHORT = 1, 8  # rows and tokens of a batch: state and hardly any activations

Ways = Callable[[], dict[str, Way]]
Case = tuple[str, int]  # way, and rows of a batch


def footprints(ways: Ways, cases: list[Case], width: int, context: int) -> list[Row]:
    """On a rank, for each case: bytes of the training, weights included, held and at most."""
    os.environ["MINIDIST_CHECK"] = "0"
    corpus()
    Meter()  # from here on it counts, and knows what is given back
    gc.freeze()  # modules and the like need not be looked through each time that we settle
    return [_footprint(ways()[name], width, batch, context) for name, batch in cases]


def _footprint(way: Way, width: int, batch: int, context: int) -> Row:
    train(way, TINY, batch, context)
    settle()
    meter = Meter()
    training = train(way, width, batch, context)
    settle()
    peak = meter.curve(training.step).peak
    settle()
    return {"held_bytes": meter.curve(settle).end, "peak_bytes": peak}


def settle() -> None:
    """Let threads let go of the last message's tensors, and Python of what lies in circles."""
    minidist.barrier()
    for _ in range(5):  # a tensor that C++ still held is found by a later round only
        gc.collect()


def train(way: Way, width: int, batch: int, context: int) -> Training:
    """Some steps."""
    training = Training(way, model(width), batch, context)
    for _ in range(STEPS):
        training.step()
    return training


def largest(
    ways: Ways, cases: list[Case], ranks: int, width: int, context: int, tries: int
) -> dict[Case, Row]:
    """For each case that of the rank that holds most.

    A thread may let go of the last message's tensors a little late: of some tries the least counts.
    """
    each = (footprints, ranks, ways, cases, width, context)
    found = [minidist.launch(*each, device="cpu", timeout=600) for _ in range(tries)]

    def of(number: int, key: str) -> int:
        return max(min(of_ranks[r][number][key] for of_ranks in found) for r in range(ranks))

    return {
        case: {key: of(number, key) for key in ("held_bytes", "peak_bytes")}
        for number, case in enumerate(cases)
    }


def memory(
    ways: Ways,
    expectations: Mapping[str, dict[str, Any] | None],
    ranks: int,
    width: int,
    tries: int,
) -> Iterator[Row]:
    """A row for each way: held and peak, and both as predicted, if that is told how."""
    batch, context = SHORT
    cases = [(way, batch) for way in expectations]
    for (way, _), row in largest(ways, cases, ranks, width, context, tries).items():
        if how := expectations[way]:
            row |= predicted(ranks=ranks, width=width, batch=batch, context=context, **how)
        yield {"what": "memory", "ranks": ranks, "way": way, **row}


def predicted(
    strategy: str,
    ranks: int,
    width: int = WIDTH,
    batch: int = BATCH,
    context: int = CONTEXT,
    layers: int = LAYERS,
    checkpointed: bool = False,
    **how: Any,
) -> Row:
    """The same by `minidist.memory.predict`, which takes `how`, with units as they are here."""
    module = model(width, layers, "meta")
    kept = activations(corpus()[1], width, layers, batch, context, checkpointed)
    units = [f"blocks.{number}" for number in range(layers)] if strategy == "zero3" else []
    # Where ranks differ, the first one has most.
    found = predict(module, ranks, strategy, activations=kept, units=units, **how)
    return {"predicted_held_bytes": found.state.total, "predicted_peak_bytes": found.peak}


def activations(
    vocab: int, width: int, layers: int, batch: int, context: int, checkpointed: bool
) -> int:
    """What autograd keeps of a forward pass: of each block all of it, or only its input.

    A checkpointed block is run again when backward comes to it: one at a time is kept whole.
    """
    one, two = (_kept(vocab, width, blocks, batch, context) for blocks in (1, 2))
    entry = batch * context * width * torch.float32.itemsize
    return one + (layers - 1) * (entry if checkpointed else two - one)


@cache
def _kept(vocab: int, width: int, blocks: int, batch: int, context: int) -> int:
    with torch.device("meta"):
        module = GPT(vocab, width, blocks, heads=4, context=context)
        ids = torch.zeros(batch, context, dtype=torch.int64)
    loss = expected(lambda: cross_entropy(module(ids).flatten(0, 1), ids.flatten()))
    return sum(loss.values())
