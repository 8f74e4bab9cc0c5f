"""One small GPT in training, however it is wrapped: its losses, its steps' time, its memory.

It learns random tokens: other ones on each rank, the same ones in every way.
"""

import gc
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import minidist
from benchmarks.footprint import activations
from benchmarks.gpu import turns
from benchmarks.gpu.section import worst
from benchmarks.gpu.times import NO_TIME
from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row
from course.training.models import GPT
from minidist.memory.meter import Meter
from minidist.memory.predict import predict

VOCAB, LAYERS, CONTEXT, ROWS = 256, 4, 32, 8
NARROW = 32  # width of the models whose training is compared
STEPS = 3
CLOSE = 1e-9  # of the loss, in float64, where only the order of sums can make a difference
ROUGH = 2e-2  # the same where forward is in bfloat16, of which 1 and the next are 1/128 apart
SHARE = 0.15  # of a world's time, that a comparison of times may take

Trained = tuple[torch.nn.Module, torch.optim.Optimizer]
Way = Callable[[GPT], Trained]  # what wraps a model, and what updates it


class Training:
    """A copy of the model in training.

    Args:
        width, dtype: of the model.
        autocast: to bfloat16 in forward.
        checkpointed: blocks keep only their inputs, and are run again in backward.

    Attributes:
        module: the bare model.
    """

    def __init__(
        self,
        way: Way,
        width: int = NARROW,
        dtype: torch.dtype = torch.float32,
        *,
        autocast: bool = False,
        checkpointed: bool = False,
    ) -> None:
        self._draw = torch.Generator().manual_seed(dist.get_rank())
        self._autocast = autocast
        torch.manual_seed(0)
        self.module = GPT(VOCAB, width, LAYERS, heads=4, context=CONTEXT)
        self.module.to(minidist.device(), dtype)
        if checkpointed:
            for block in self.module.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        self._wrapped, self._optimizer = way(self.module)
        self._losses: list[torch.Tensor] = []

    def step(self) -> None:
        """One step; its gradients stay until the next."""
        drawn = torch.randint(VOCAB, (ROWS, CONTEXT + 1), generator=self._draw)
        rows = drawn.to(minidist.device())
        self._optimizer.zero_grad()
        with self._precision():
            scores = self._wrapped(rows[:, :-1]).flatten(0, 1)
            wide = torch.promote_types(scores.dtype, torch.float32)  # a loss is not to be rounded
            loss = cross_entropy(scores.to(wide), rows[:, 1:].flatten())
        loss.backward()
        self._optimizer.step()
        self._losses.append(loss.detach())

    def losses(self) -> torch.Tensor:
        """This rank's in some steps; float64 on the CPU, [STEPS]."""
        for _ in range(STEPS):
            self.step()
        return torch.stack(self._losses).double().cpu()

    def _precision(self) -> AbstractContextManager[object]:
        if self._autocast:
            return torch.autocast(minidist.device().type, torch.bfloat16)
        return nullcontext()


def compared(ways: dict[str, Way], want: torch.Tensor, close: float, **how: Any) -> Iterator[Row]:
    """On a rank, a row for each way: how far its losses are from those that are wanted.

    Args:
        close: by which part of the loss they may differ.
        how: to train, as in `Training`.
    """
    for name, way in ways.items():
        far = ((Training(way, **how).losses() - want) / want).abs().max().item()
        yield {"way": name, "difference": far, "close": close, "right": far <= close}


def raced(ways: dict[str, Way], against: str, width: int, budget: float, **how: Any) -> Row:
    """Quartiles of a step of each way, in turns, in about `budget` seconds; the ratios."""
    trainings = {name: Training(way, width, **how) for name, way in ways.items()}
    steps = {name: each.step for name, each in trainings.items()}
    seen, calls = turns.race(steps, budget, lambda: None, minidist.device())
    if not seen:
        return {"left_out": NO_TIME}
    row: Row = {f"{way}_us": turns.quartiles(times) for way, times in seen.items()}
    for way in ways:
        row[f"{way}_ratio"] = round(row[f"{way}_us"][1] / row[f"{against}_us"][1], 3)
    return {**row, "calls": calls, "rounds": len(seen[against])}


def footprints(
    ways: dict[str, Way], width: int, strategies: dict[str, Row], again: Collection[str]
) -> Iterator[Row]:
    """On a rank, a row of bytes for each way; for some another one with checkpointed blocks.

    Args:
        strategies: of ways that `minidist.memory.predict` knows, its arguments.
        again: the ways that are also trained with checkpoints.
    """
    for name, way in ways.items():
        for checkpointed in (False, True) if name in again else (False,):
            row = footprint(way, width, checkpointed=checkpointed)
            if how := strategies.get(name):
                row |= predicted(width=width, checkpointed=checkpointed, **how)
            yield {"memory": name, "checkpointed": checkpointed, **row}


def footprint(way: Way, width: int, **how: Any) -> Row:
    """Bytes of a training, weights included: after a step, and at most during one.

    On a GPU by the allocator's statistics; on the CPU by torch's profiler.
    """
    device = minidist.device()
    Training(way, **how).losses()  # takes what a process needs once, such as cuBLAS's workspace
    _settle(device)
    if device.type == "cpu":
        meter = Meter(device)
        training = _trained(way, width, **how)
        held = meter.curve(partial(_settle, device)).end
        return {"held_bytes": held, "peak_bytes": meter.curve(training.step).peak}
    start = torch.cuda.memory_allocated(device)
    training = _trained(way, width, **how)
    _settle(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    training.step()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return {"held_bytes": held - start, "peak_bytes": peak - start}


def _settle(device: torch.device) -> None:
    """Let threads let go of the last message's tensors, and Python of what lies in circles."""
    minidist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    for _ in range(5):  # a tensor that C++ still held is found by a later round only
        gc.collect()


def _trained(way: Way, width: int, **how: Any) -> Training:
    training = Training(way, width, **how)
    training.losses()
    return training


def predicted(strategy: str, width: int, checkpointed: bool, **how: Any) -> Row:
    """The same by `minidist.memory.predict`, which takes `how`, in float32."""
    with torch.device("meta"):
        module = GPT(VOCAB, width, LAYERS, heads=4, context=CONTEXT)
    kept = activations(VOCAB, width, LAYERS, ROWS, CONTEXT, checkpointed)
    units = [f"blocks.{number}" for number in range(LAYERS)] if strategy == "zero3" else []
    ranks = dist.get_world_size()
    found = predict(module, ranks, strategy, activations=kept, units=units, **how)
    return {"predicted_held_bytes": found.state.total, "predicted_peak_bytes": found.peak}


def refused(ways: dict[str, Way]) -> dict[str, str]:
    """The ways that some rank's backend does not take, and what it says."""
    told = {name: turns.refusal(partial(_one_step, way)) for name, way in ways.items()}
    return {name: why for name, why in told.items() if why}


def _one_step(way: Way) -> None:
    Training(way).step()


Ways = Callable[[], dict[str, Way]]
OnRank = Callable[[Ways, int, float], list[Row]]


def measured(
    world: World, on_rank: OnRank, ways: Ways, where: Where, seconds: float
) -> Iterator[Row]:
    """The rows of `on_rank(ways, width, seconds for a comparison of times)`, of all ranks one.

    Raises:
        AssertionError: after them, if something in them is not right.
    """
    of_ranks = world.launch(on_rank, ways, where.width, SHARE * seconds, timeout=seconds)
    rows = [worst(each) for each in zip(*of_ranks, strict=True)]
    yield from rows
    wrong = [f"{row['way']}: {row['difference']:.1e}" for row in rows if not row.get("right", True)]
    assert not wrong, f"losses differ from torch's, such as {wrong[0]}"


def unchecked() -> None:
    """As torch does: no agreement before each call."""
    os.environ["MINIDIST_CHECK"] = "0"
