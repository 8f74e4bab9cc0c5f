"""The capstone on paper: a grid for a drawn job, graded by regret and by the forecast of its step.

The judge is the price of the grid, and that of the first that a search of all grids finds. Neither
is told before the forecast is right.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from course.ask.verdict import Grader, Wrong, number, whole
from minidist.formulas import grids
from minidist.formulas.inputs import Grid, Question
from minidist.planner.given import price
from minidist.planner.hardware import ACCELERATORS
from minidist.planner.jobs import sized
from minidist.planner.planner import in_bytes, in_seconds
from minidist.planner.search import NAMES, Found, asked, priced
from minidist.planner.sizes import Sizes

WITHIN = 0.15  # relative to the price of the grid
REGRET = 0.10  # most by which a step may be longer than in the best grid
ROOMY = 4  # a GPU's memory over its share of the state, at least
MIXTURE = 32, 4096, 1408, 32, 8, 128_256  # layers, width, hidden, heads, of keys, vocabulary


class Job(NamedTuple):
    """A model, and on what it is to be trained."""

    seed: int
    name: str
    sizes: Sizes
    hardware: str
    ranks: int
    samples: int

    def __str__(self) -> str:
        return (
            f"Seed {self.seed}: {self.name} in sequences of {self.sizes.tokens:,} tokens, "
            f"{self.samples:,} of them in a step, on {self.ranks:,} {self.hardware}."
        )

    @property
    def question(self) -> Question:
        """What `minidist.search` would be asked."""
        return asked(self.sizes, self.hardware, self.ranks, self.samples)


def draw(seed: int) -> Job:
    """The job of a seed; some grid always fits."""
    source = Random(f"grid {whole(seed)}")
    sequence = source.choice([4096, 8192, 32_768])
    models = {
        "the medium job's model": sized("medium", sequence),
        "the large job's model": sized("large", sequence),
        "a mixture of 64 experts": Sizes.mixture(
            *MIXTURE, sequence, experts=64, active=6, beside=2816
        ),
    }
    name = source.choice([*models])
    hardware = source.choice(["A100", "H100", "H200"])
    ranks = 16
    while ROOMY * 16 * models[name].parameters > ranks * ACCELERATORS[hardware].memory:
        ranks *= 2
    ranks *= source.choice([1, 2, 4])
    samples = ranks * source.choice([4096, 8192, 16_384, 32_768]) // sequence
    return Job(seed, name, models[name], hardware, ranks, samples)


@Grader
def grid(choice: Any, seconds: Any, seed: int) -> str:
    """Grade a grid for the job of a seed, and the seconds that its step is forecast to take.

    Args:
        choice: field → value, as `minidist.formulas.inputs.Grid` has them.
        seconds: the forecast.
        seed: of the job.
    """
    job = draw(seed)
    own = grid_of(choice)
    if seconds is None:
        raise NotImplementedError("Forecast the seconds of a step, too.")
    try:
        told = number(seconds)
    except TypeError as error:
        raise Wrong(f"a forecast is a number of seconds; yours is {seconds!r:.80}.") from error
    try:
        found = price(job.question, own)
    except (ValueError, TypeError) as error:
        raise Wrong(f"this job has no such grid. {error}.") from error
    for wrong in _check(job, found, told):
        raise Wrong(wrong)
    best = first(job)
    regret = found.seconds / best.seconds - 1
    if regret > REGRET:
        raise Wrong(
            f"the forecast is right, {in_seconds(found.seconds)}, but there is a grid whose step "
            f"is {1 - best.seconds / found.seconds:.0%} shorter. Yours loses most of that to "
            f"{_lost(found, best)}."
        )
    return (
        f"seed {seed}: a step takes {in_seconds(found.seconds)}, and your forecast is off by "
        f"{abs(told / found.seconds - 1):.0%}. Your regret is {regret:.0%}: the first that a "
        f"search finds is {best}, with {in_seconds(best.seconds)}."
    )


def grid_of(choice: Any) -> Grid:
    """The grid that a reader has written."""
    if isinstance(choice, Grid):
        choice = choice._asdict()
    if not isinstance(choice, Mapping):
        raise Wrong(f"a grid is a dict of its fields; yours is {choice!r:.80}.")
    if unknown := [name for name in choice if name not in Grid._fields]:
        raise Wrong(f"a grid has no field {unknown[0]!r}; it has {', '.join(Grid._fields)}.")
    if missing := [name for name in Grid._fields if choice.get(name, "default") is None]:
        raise NotImplementedError(f"Commit to a grid: {', '.join(missing)} is open.")
    if lacking := [name for name in ("strategy", "data") if name not in choice]:
        raise Wrong(f"a grid needs its {lacking[0]!r}.")
    return Grid(**choice)


def first(job: Job) -> Found:
    """The fastest grid of all that fit."""
    return priced(job.question, grids.search(job.question, 1)["best"][0]["grid"])


def _check(job: Job, found: Found, told: float) -> Iterator[str]:
    limit, needs = job.question.limit, found.forecast.peak
    if needs > limit:
        held = {name: found.forecast.memory[name] for name in ("always", "activations")}
        most = "activations" if held["activations"] > held["always"] else "the state"
        yield (
            f"it does not fit: a rank needs {in_bytes(needs)} of the {in_bytes(limit)} that it may "
            f"take, {most} most of all. Which degree divides {most}, or what can be computed again?"
        )
    off = told / found.seconds
    if abs(off - 1) > WITHIN:
        slips = {
            found.spent["compute"]: "That is compute alone: what does a rank wait for?",
            found.seconds - found.spent["recomputation"]: "What is computed again takes time.",
            found.seconds - found.spent["bubble"]: "The pipeline's bubble is missing.",
            1e3 * found.seconds: "Seconds are asked for, not milliseconds.",
            found.seconds / grids.micro_batches(job.question, found.grid):
                "That is one micro-batch; a step has several.",
            found.seconds / 3: "Backward takes twice as long as forward.",
            job.ranks * found.seconds: "That is the work of all GPUs; they share it.",
        }  # fmt: skip
        close = [text for seconds, text in slips.items() if abs(told - seconds) <= 0.03 * seconds]
        yield (
            f"it fits, but your forecast is more than {WITHIN:.0%} too "
            f"{'long' if off > 1 else 'short'}. {' '.join(close[:1])}"
        ).rstrip()


def _lost(found: Found, best: Found) -> str:
    more = {name: found.spent[name] - best.spent[name] for name in found.spent}
    return NAMES[max(more, key=more.__getitem__)]
