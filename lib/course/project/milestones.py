"""The project's milestones as data: what to write in which file, and what it must do and cost."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch.optim import SGD

from course.ask.forbidden import without_minidist, without_torch, without_wrappers
from course.project import held, layers, scenarios
from course.project.models import EITHER_ORDER, MODELS, Task, squares, uneven
from course.project.scenarios import COLLECTIVES, Cases, Scenario
from course.project.trained import Train, with_ddp, with_fsdp, with_zero, with_zero_3


class Means(NamedTuple):
    """The calls by which a milestone sends, and those that it must do without."""

    instead: str
    without: tuple[Callable[[str], AbstractContextManager[None]], ...]


IN_BATCHES = Means("`isend` and `irecv` in one batch", (without_torch, without_minidist))
# Ranks tell each other by `broadcast` what they refuse; what is sent so counts as not sent.
STAGES = Means(
    "`isend` and `irecv`", (partial(without_torch, allowed="broadcast"), without_minidist)
)
MESSAGES = Means("`isend` and `irecv`", (without_torch, without_minidist))
COMM = Means("the calls of `comm`", (without_torch,))
EXCHANGE = Means("`exchange`", (without_torch,))
WRAPPING = Means("the calls of `comm`", (without_wrappers,))


@dataclass(frozen=True)
class Milestone:
    """Something to write in a file, and the scenario that it must come through."""

    file: str  # without `.py`
    names: tuple[str, ...]
    means: Means
    scenario: Scenario
    cases: Cases  # in which no rank may send more than with `from_scratch`
    others: Cases = field(default_factory=dict)  # in which only results count
    train: Any = None  # a `Train`, which wraps a model with it: then a step's cost counts, too
    moved: int = 0  # bytes that all ranks send in a step, over (N - 1) times those of the model
    lean: bool = False  # true if the task asks for the least memory
    overlap: float = 0.0  # the share of `from_scratch`'s that is enough, as ways to overlap differ
    held: tuple[Any, ...] = ()  # steps of which it counts what a rank holds: see `held.py`
    holds: str = ""  # what a rank should hold, to say where it is more
    computes: Any = None  # a step of which it counts what a rank multiplies
    part: str = ""  # what a rank should compute, to say where it is more
    apart: int = 1  # messages that may be sent for one of `from_scratch`
    fewest: str = ""  # what to say of fewer messages; fewer are right if this is ""


def trains(file: str, name: str, train: Train, moved: int = 2, **limits: Any) -> Milestone:
    """A way to train; in ZeRO and FSDP all ranks must reach units in one order."""
    models = {
        model: (train, task)
        for model, task in MODELS.items()
        if file == "ddp" or model != EITHER_ORDER
    }
    odd = {"layers of drawn widths, trained by SGD": (train, Task(uneven, squares), SGD)}
    cases = {**odd, **models}
    return Milestone(file, (name,), WRAPPING, scenarios.training, {}, cases, train, moved, **limits)


MILESTONES = {
    "ring": Milestone(
        "ring",
        ("all_reduce", "reduce_scatter", "all_gather"),
        IN_BATCHES,
        scenarios.ring,
        COLLECTIVES,
        scenarios.SIZES,
    ),
    "DDP, per parameter": trains("ddp", "PerParameterDDP", with_ddp, lean=True),
    "DDP, flat": trains("ddp", "FlatDDP", with_ddp),
    "DDP, bucketed": trains("ddp", "BucketedDDP", with_ddp, overlap=0.9),
    "DDP, overlapped": trains("ddp", "OverlappedDDP", with_ddp, overlap=0.9),
    "ZeRO-1": trains("zero", "ZeRO1", with_zero, lean=True),
    "ZeRO-2": trains("zero", "ZeRO2", with_zero, lean=True, overlap=0.75),
    "ZeRO-3": trains("zero3", "ZeRO3", with_zero_3),
    "FSDP": trains("fsdp", "FSDP", partial(with_fsdp, prefetch=False), 3, lean=True),
    "FSDP, prefetch": trains("fsdp", "FSDP", with_fsdp, 3, lean=True, overlap=0.75),
    "pipeline": Milestone(
        "pipeline",
        ("Pipeline",),
        STAGES,
        layers.pipeline,
        layers.PIPELINES,
        held=(held.pipeline,),
        computes=held.pipeline,
        holds="Drop what a micro-batch needs once its backward is done, and work in the order of "
        "`works`, by which few are under way.",
        part="Run the stages of this rank, and no others.",
        fewest="each micro-batch travels by itself, as soon as a stage has computed it.",
    ),
    "tensor parallelism": Milestone(
        "tensor",
        ("SplitBlock", "attend"),
        COMM,
        layers.tensor,
        layers.SEQUENCES,
        held=(held.tensor,),
        computes=held.tensor,
        holds="Keep this rank's part of each weight, not a view of all of it.",
        part="Multiply by this rank's part of each weight alone: the sum over the ranks brings the "
        "rest, so nobody needs the whole layer.",
    ),
    "context parallelism": Milestone(
        "context",
        ("split", "attention"),
        MESSAGES,
        layers.context,
        layers.PIECES,
        held=(held.attend, held.context),
        computes=held.long,
        holds="Keep one block of keys and values, and the one that arrives.",
        part="Attend from this rank's own tokens alone: each of the others attends from its own.",
        apart=2,  # keys and values
    ),
    "experts": Milestone(
        "expert",
        ("Experts",),
        EXCHANGE,
        layers.expert,
        layers.CHOICES,
        held=(held.expert,),
        computes=held.expert,
        holds="Keep this rank's experts, and no others.",
        part="Run this rank's experts on the tokens that come to them: tokens travel so that "
        "nobody needs every expert.",
    ),
    "local SGD": Milestone(
        "local_sgd",
        ("LocalSGD", "DiLoCo"),
        COMM,
        scenarios.local_sgd,
        scenarios.ROUNDS,
        held=(held.local_sgd,),
        holds="Keep nothing of a round that is over.",
    ),
}


def by_name(name: str) -> Milestone:
    """The milestone of this name."""
    if name not in MILESTONES:
        raise ValueError(f"no milestone {name!r}; there are {[*MILESTONES]}")
    return MILESTONES[name]
