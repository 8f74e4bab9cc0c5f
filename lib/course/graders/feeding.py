"""Graders of the lab on feeding the ranks: samples, accumulation, learning rate, checkpoints.

What is right comes from torch's own sampler and scheduler, and from one process on the whole batch.
"""

import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

import minidist
from course.graders.averages import near
from course.sandbox.forbidden import without_torch
from course.sandbox.ranks import REAL, Traffic, check_traffic, on_worlds
from course.verdict import (
    Grader,
    Wrong,
    amount,
    ask_as,
    check_answers,
    formula,
    list_of,
    number,
    on_ranks,
    whole,
)
from minidist.comm.ours import Ours

__all__ = ["accumulate", "indices", "rate", "save"]

MICRO = (4, 1, 3)  # backward passes to a step, in `accumulate`
# Learning rates: base, factor, warm-up.
RATES = ((0.1, 8.0, 10), (0.05, 4.0, 5), (0.4, 32.0, 1), (0.1, 1.0, 3), (0.07, 1.5, 23))
PATIENCE = 1.0  # seconds in which a rank that does not wait for the file has come back


# ---- samples ----


@formula
def indices(function: Callable[[int, int, int, int, bool], Sequence[int]]) -> str:
    """Grade function(size, ranks, rank, epoch, drop_last): the samples of one rank, in order.

    The judge is torch's DistributedSampler.
    """
    cases = [(10, 4), (12, 4), (7, 2), (5, 1), (3, 8), (97, 5), (41, 6), (64, 16), (1, 3)]
    for (size, ranks), drop_last, epoch in product(cases, (False, True), (0, 3, 17)):
        case = f"{size} samples, {ranks} ranks, epoch {epoch}, drop_last={drop_last}: "
        found = [
            ask_as(list_of(whole), "a list of numbers", function, *(size, ranks, rank, epoch),
                   drop_last, case=case)
            for rank in range(ranks)
        ]  # fmt: skip
        right = _drawn(size, ranks, epoch, drop_last)
        if found != right:
            first = next(rank for rank in range(ranks) if found[rank] != right[rank])
            yours, its = _short(found[first]), _short(right[first])
            why = _why_indices(found, right, size, found == _drawn(size, ranks, 0, drop_last))
            raise Wrong(f"{case}you give rank {first} {yours}, expected {its}. {why}")
    return (
        f"your ranks draw what torch's DistributedSampler gives them, for {len(cases)} sizes on "
        "1 to 16 ranks, in three epochs, padded and dropped. No rank had to ask another: each "
        "shuffles all numbers alike and takes its own."
    )


def _drawn(size: int, ranks: int, epoch: int, drop_last: bool) -> list[list[int]]:
    """What torch's sampler draws on every rank."""
    drawn = []
    for rank in range(ranks):
        samples: Any = range(size)  # all that it asks of them is their number
        sampler = DistributedSampler[Any](samples, ranks, rank, drop_last=drop_last)
        sampler.set_epoch(epoch)
        drawn.append(list(sampler))
    return drawn


def _short(numbers: Sequence[int]) -> str:
    return str(list(numbers)) if len(numbers) < 9 else f"{list(numbers[:8])[:-1]}, ...]"


def _why_indices(
    found: list[list[int]], right: list[list[int]], size: int, of_epoch_0: bool
) -> str:
    flat = [index for own in found for index in own]
    lengths, wanted = sorted({len(own) for own in found}), len(right[0])
    if any(not 0 <= index < size for index in flat):
        return f"Samples are numbered 0 to {size - 1}."
    if of_epoch_0:
        return "That is the order of epoch 0: seed the generator with the epoch."
    if len(lengths) > 1:
        return (
            f"Your ranks have {' to '.join(map(str, (lengths[0], lengths[-1])))} samples each: one "
            "would run out of them before its peers. Repeat the first ones, or drop the last."
        )
    if lengths[0] != wanted:
        return f"Each rank should have {wanted} samples, yours have {lengths[0]}."
    if sorted(flat) != sorted(index for own in right for index in own):
        return (
            "Over all ranks together some samples are drawn too often and others never. All ranks "
            "must shuffle alike: the seed is the epoch, not the rank. What is repeated comes from "
            "the front of the shuffled order."
        )
    if len(right) > 1:
        return "A fair split, but not the sampler's: rank r takes places r, r + N, r + 2N, ..."
    return "Shuffle with torch.randperm and a generator of its own, seeded with the epoch."


# ---- accumulation ----


class _Step(NamedTuple):
    """What one rank has after a learner's step."""

    gradients: list[torch.Tensor | None]  # of each parameter
    sent: Traffic


@Grader
def accumulate(function: Callable[[Any, list[torch.Tensor], Callable[..., Any]], object]) -> str:
    """Grade function(model, batches, loss), which must leave the gradient of all batches.

    `model` is wrapped, `batches` are of the same size, `loss(output)` is a mean. On real ranks; the
    judge is one process that has all batches of all of them.
    """
    for micro, steps in on_worlds(partial(_accumulate, function), MICRO):
        _check_accumulated(micro, steps)
    return (
        f"{REAL}, after {', '.join(map(str, MICRO))} backwards to a step, the gradient is that of "
        "one process that has all batches; and the model's gradients were all-reduced once, in one "
        "call, however many backwards there were."
    )


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _batches(rank: int, micro: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(10 + rank)
    return list(torch.randn(micro, 5, 6, generator=generator))


def _loss(output: torch.Tensor) -> torch.Tensor:
    return (output - 1).square().mean()


def _accumulate(function: Callable[..., object], micro: int) -> _Step:
    net = _net()
    model = minidist.DistributedDataParallel(net, comm=Ours(algorithm="ring"))
    with without_torch("the wrapped model"), minidist.record() as log:
        function(model, _batches(dist.get_rank(), micro), _loss)
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    return _Step(gradients, Traffic.of(log))


def _check_accumulated(micro: int, steps: Sequence[_Step]) -> None:
    ranks, alone = len(steps), _net()
    parameters = list(alone.parameters())
    whole = torch.cat([batch for rank in range(ranks) for batch in _batches(rank, micro)])
    torch.autograd.backward(_loss(alone(whole)))
    size = sum(parameter.nbytes for parameter in parameters)
    for rank, step in enumerate(steps):
        where = f"with {micro} batches on each of {ranks} ranks, rank {rank}"
        if any(gradient is None for gradient in step.gradients):
            raise Wrong(f"{where} has no gradient of every parameter. Call backward.")
        if step.sent.nbytes == 0:
            raise Wrong(
                f"{where} has all-reduced nothing: its gradient is of its own batches alone. The "
                "last backward must be outside of no_sync()."
            )
        found = torch.cat([g.flatten() for g in step.gradients if g is not None])
        right = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        if not near(found, right):
            raise Wrong(f"{where}'s gradient {_why_accumulated(found, right, micro)}")
    check_traffic(
        [step.sent for step in steps], 2 * (ranks - 1) * size, 2 * (ranks - 1),
        so_far=f"the gradient of {micro} batches is right",
        advice="Only the last backward need talk to the other ranks: the others belong under "
        "model.no_sync().", too_little="Let the last backward of the wrapped model do it.",
    )  # fmt: skip


def _why_accumulated(found: torch.Tensor, right: torch.Tensor, micro: int) -> str:
    times = float(found @ right / (right @ right))
    if not near(found, times * right):
        off = (found - right).abs().max().item()
        return f"is off by up to {off:.1e}. Every batch must go through model and backward once."
    if times > 1:
        return (
            f"is {times:.3g} times too large: divide each loss by the number of batches, {micro}."
        )
    return f"is {1 / times:.3g} times too small: divide each loss once, by the number of batches."


# ---- learning rate ----


@formula
def rate(function: Callable[[int, float, float, int], float]) -> str:
    """Grade function(step, base, factor, warmup): the learning rate of a step, counted from 0.

    From `base` up to `factor * base` in `warmup` equal increments, then constant: the gradual
    warm-up of Goyal et al. (2017), section 2.2. The judge is torch's LinearLR.
    """
    cases = [(step, *run) for run in RATES for step in range(run[-1] + 5)]
    cases += [(step, *run, 0) for run in ((0.1, 8.0), (0.3, 2.5)) for step in (0, 1, 7)]
    told = "For step {} with base {}, factor {}, warm-up {}".format
    check_answers(
        function, cases, _scheduled, told, _why_rate, read=number, show=amount,
        same=partial(math.isclose, rel_tol=1e-6), expected="a learning rate, a number",
    )  # fmt: skip
    return (
        f"yours is the rate of torch's LinearLR in {len(RATES)} runs, at every step up to five "
        "after the warm-up, and the full rate where there is none. The first step is taken with "
        "the rate that one rank would have taken."
    )


def _scheduled(step: int, base: float, factor: float, warmup: int) -> float:
    if not warmup:
        return factor * base
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=factor * base)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / factor, total_iters=warmup)
    for _ in range(step):
        optimizer.step()
        schedule.step()
    return float(optimizer.param_groups[0]["lr"])


def _why_rate(answer: float, step: int, base: float, factor: float, warmup: int) -> str:
    if step == 0 and warmup:
        return " The first step is taken with the base rate: it is not zero, and not yet scaled."
    if answer > factor * base:
        return " It must not grow beyond factor * base."
    if step >= warmup:
        return " From step `warmup` on it is factor * base."
    return " In between, every step adds as much as the one before it."


# ---- saving: a reader looks at the file while it is written ----


class _Saw(NamedTuple):
    """What was seen on one rank."""

    meanwhile: list[str]  # what a reader found there while this rank wrote; nothing if it did not
    removed: bool
    moved_from: list[str]  # folders of the files that were renamed to the path
    after: str  # what this rank found in the file when the function had returned


class _Spy:
    """Part of the state: when it is written, it looks what a reader would find meanwhile."""

    def __init__(self, path: Path, ranks: int) -> None:
        self.path, self.ranks, self.found = path, ranks, list[str]()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        self.found.append(_content(self.path))
        back, deadline = self.path.parent.with_name("back"), time.monotonic() + PATIENCE
        while len(list(back.iterdir())) < self.ranks - 1 and time.monotonic() < deadline:
            time.sleep(0.005)  # time for the others to come back too early
        return int, (1,)


@Grader
def save(function: Callable[[dict[str, Any], Path], object]) -> str:
    """Grade function(state, path), which all ranks call to save rank 0's state.

    There is an older file at `path`. A reader may come at any moment, and must find a whole one.
    """
    for ranks, name in ((3, "model.pt"), (2, "step 40.ckpt")):
        _try_to_save(function, ranks, name)
    return (
        "on 3 and on 2 real ranks, a reader found the complete old file while rank 0 wrote, and "
        "every rank found the new one after the call. A process that had opened the old file "
        "could read it to its end."
    )


def _try_to_save(function: Callable[..., object], ranks: int, file: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        for folder in ("run", "back"):
            Path(name, folder).mkdir()
        path, kept = Path(name, "run", file), Path(name, "kept")
        torch.save({"weights": torch.zeros(1000)}, path)
        kept.hardlink_to(path)  # a reader that has opened the old file
        saw: list[_Saw] = on_ranks(_save, ranks, function, path)
        _check_saved(saw, path, _content(kept))


def _save(function: Callable[..., object], path: Path) -> _Saw:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    removed, moved = list[bool](), list[str]()

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rename") and Path(args[0]) == path:
            removed.append(True)
        if event == "os.rename" and Path(args[1]) == path:
            moved.append(str(Path(args[0]).absolute().parent))

    sys.addaudithook(watch)  # it cannot be taken back, but this process ends soon
    spy = _Spy(path, ranks if rank == 0 else 1)
    function({"weights": torch.ones(1000), "step": spy}, path)
    after = _content(path)
    Path(path.parent.with_name("back"), str(rank)).touch()
    dist.barrier()
    return _Saw(spy.found, bool(removed), moved, after)


def _content(path: Path) -> str:
    """What a reader finds there: "old", "new", or that it cannot be read."""
    if not path.exists():
        return "no file"
    try:
        weights = torch.load(path, weights_only=False)["weights"]
    except Exception:
        return "a file that cannot be read"
    return "new" if weights.sum() else "old"


def _check_saved(saw: list[_Saw], path: Path, kept: str) -> None:
    first, *others = saw
    writers = [rank for rank, each in enumerate(saw) if each.meanwhile]
    if writers and writers != [0]:
        raise Wrong(f"ranks {writers} write, into one place. Only rank 0 should.")
    if first.after != "new":
        raise Wrong(f"when rank 0 is back it finds {_the(first.after)} at path, not what it saved.")
    if kept != "old" or set(first.meanwhile) != {"old"}:
        found = next((each for each in first.meanwhile if each != "old"), kept)
        raise Wrong(
            f"while rank 0 writes, a reader finds {_the(found)} at path. Write to another name in "
            "the same folder, and rename when all is written."
        )
    if first.removed:
        raise Wrong("the old file is removed first: for a moment there is none. os.replace is one "
                    "step.")  # fmt: skip
    away = [folder for folder in first.moved_from if Path(folder) != path.parent.absolute()]
    if away:
        raise Wrong(
            f"the file comes from {away[0]}. If that is another disk, it is not renamed but "
            "copied, and can be read half-way. Write it beside its place."
        )
    for rank, each in enumerate(others, 1):
        if each.after != "new":
            raise Wrong(
                f"when rank {rank} is back it finds {_the(each.after)}: rank 0 is still writing. "
                "All ranks must wait until it has done."
            )
    left = sorted(each.name for each in path.parent.iterdir() if each != path)
    if left:
        raise Wrong(f"beside the file there is left {left[0]}.")


def _the(content: str) -> str:
    return f"the {content} file" if content in ("old", "new") else content
