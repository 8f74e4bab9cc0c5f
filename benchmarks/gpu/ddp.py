"""DDP beside torch's own: the same gradients, the time of a step, and how much of it overlaps.

Both train copies of one small GPT on random tokens, other ones on each rank. Gradients are compared
in float64, where only the order of sums can make a difference.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

import minidist
from benchmarks.gpu import turns
from benchmarks.gpu.section import in_each_world
from benchmarks.gpu.times import NO_TIME
from benchmarks.gpu.training import NARROW, Trained, Training, Way, unchecked
from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row
from course.training.models import GPT
from minidist.comm.comm import Native, Ours
from minidist.profiler.spans import Span, hidden
from minidist.profiler.timeline import timeline

STEPS = 3  # buckets are rebuilt after the first
CLOSE = 1e-10  # of the largest gradient

Wrap = Callable[[torch.nn.Module], torch.nn.Module]


@in_each_world
def measure(world: World, where: Where, seconds: float) -> Iterator[Row]:
    """A row for each way to wrap that is compared, one of times, and one of overlap.

    Raises:
        AssertionError: after them, if gradients differ from torch's.
    """
    of_ranks = world.launch(on_rank, ways, where.width, 0.3 * seconds, timeout=seconds)
    wrong = []
    for way in of_ranks[0][0]:
        far = [differ[way] for differ, _, _ in of_ranks]
        right = all(each <= CLOSE for each in far)  # not so for NaN
        yield {"way": way, "difference": max(far), "right": right}
        wrong += [f"{way}: rank {r}: {d:.1e}" for r, d in enumerate(far) if not d <= CLOSE]
    yield of_ranks[0][1]
    yield overlap([span for _, _, spans in of_ranks for span in spans])
    assert not wrong, f"gradients differ from torch's, such as {wrong[0]}"


def ways() -> dict[str, Wrap]:
    """How a module is wrapped in our DDP; on a rank."""

    def ours(**options: Any) -> Wrap:
        sizes = {"bucket_cap_mb": 0.1, "first_bucket_mb": 0.1}  # several, though the model is small
        return lambda module: minidist.DistributedDataParallel(module, **sizes, **options)

    found = {sync: ours(sync=sync) for sync in ("overlapped", "bucketed", "flat", "naive")}
    found["overlapped, views"] = ours(gradient_as_bucket_view=True)
    found["overlapped, ring"] = ours(comm=Ours(algorithm="ring"))
    found["overlapped, native"] = ours(comm=Native())
    return found


def torchs(module: torch.nn.Module) -> torch.nn.Module:
    """Torch's own."""
    return torch.nn.parallel.DistributedDataParallel(module)


def on_rank(
    wraps: Callable[[], dict[str, Wrap]], width: int, budget: float
) -> tuple[dict[str, float], Row, list[Span]]:
    """Way → difference of its gradients; a row of times; what ran when in a few steps."""
    unchecked()
    far = {way: difference(wrap) for way, wrap in wraps().items()}
    ours = Training(sgd(minidist.DistributedDataParallel), width)
    row = _times(ours, width, budget)
    with timeline() as line:
        for _ in range(STEPS):
            ours.step()
    return far, row, line.spans


def sgd(wrap: Wrap) -> Way:
    """Plain SGD of a wrapped model."""

    def way(module: GPT) -> Trained:
        return wrap(module), torch.optim.SGD(module.parameters(), lr=0.1)

    return way


def difference(wrap: Wrap) -> float:
    """Of the gradients from torch's in some steps, the largest, by the largest gradient."""
    ours, theirs = (Training(sgd(each), NARROW, torch.float64) for each in (wrap, torchs))
    found = []
    for _ in range(STEPS):
        ours.step()
        theirs.step()
        largest = torch.stack([p.grad.abs().max() for p in theirs.module.parameters()]).max()
        pairs = zip(ours.module.parameters(), theirs.module.parameters(), strict=True)
        found += [(mine.grad - other.grad).abs().max() / largest for mine, other in pairs]
    return torch.stack(found).max().item()  # NaN, if there is one


def _times(ours: Training, width: int, budget: float) -> Row:
    """Of a step, in turns; `alone` sends nothing."""
    wraps: dict[str, Wrap] = {"torch": torchs, "alone": lambda module: module}
    trainings = {way: Training(sgd(wrap), width) for way, wrap in wraps.items()}
    trainings["ours"] = ours
    steps = {way: each.step for way, each in trainings.items()}
    seen, calls = turns.race(steps, budget, lambda: None, minidist.device())
    row: Row = {"gradient_bytes": sum(each.nbytes for each in ours.module.parameters())}
    if not seen:
        return {**row, "left_out": NO_TIME}
    row |= {f"{way}_us": turns.quartiles(times) for way, times in seen.items()}
    ratio = round(row["ours_us"][1] / row["torch_us"][1], 3)
    return {**row, "calls": calls, "rounds": len(seen["ours"]), "ratio": ratio}


def overlap(spans: list[Span]) -> Row:
    """What share of communication ran while backward did, by CUDA events where there are GPUs."""
    sent = [span for span in spans if span.lane == "communication"]
    return {
        "hidden": round(hidden(spans), 3),
        "buckets": len({span.name for span in sent}),
        "communication_ms": round(1e3 * sum(span.end - span.start for span in sent), 3),
    }
