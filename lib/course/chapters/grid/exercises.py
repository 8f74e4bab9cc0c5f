"""Graders of the lab on grids: the widest tensor degree, the bubble, and what a rank holds."""

from collections.abc import Callable
from math import prod
from typing import Any

from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import draws, number
from minidist.formulas import grids, models
from minidist.formulas.compute import compute
from minidist.formulas.inputs import Grid
from minidist.formulas.inside import tensor_parallel
from minidist.formulas.memory import STAGES, state
from minidist.memory.state import AUTOCAST, MIXED, bytes_each
from minidist.planner.jobs import sized
from minidist.planner.search import asked

DEGREES = [1, 2, 4, 8, 16, 32]
GB = 10**9


# ---- the widest tensor degree ----


def seconds_of(
    model: Any, hardware: str, degrees: list[int], ranks: int = 64
) -> tuple[list[float], list[float]]:
    """Seconds of a step, by tensor degree: of its collectives, and of its compute.

    The ranks have as many samples under each degree: one for each of them.
    """
    question, tensor, computes = asked(model, hardware, ranks, ranks), list[float](), list[float]()
    for degree in degrees:
        step = grids.step_of(question, Grid("fsdp", ranks // degree, degree))
        tensor.append(step.accumulated * tensor_parallel(step))
        computes.append(step.accumulated * sum(compute(step)))
    return tensor, computes


@Exercise
def widest() -> Table:
    """Grade function(degrees, tensor, compute, loss): the widest degree that loses no more.

    tensor[i] and compute[i] are seconds of a step with degrees[i]; nothing hides the first. `loss`
    is a share of the speed that the first degree has.
    """
    cases = []
    for job, hardware, losses in (
        ("medium", "H100", (0.1, 0.3)),
        ("small", "H200", (0.25, 0.6)),
        ("large", "A100", (0.05, 0.15)),
    ):
        tensor, computes = seconds_of(sized(job), hardware, DEGREES)
        shown = [[float(f"{each:.4g}") for each in own] for own in (tensor, computes)]
        cases += [(DEGREES, *shown, loss) for loss in losses]
    draw = draws(65)
    for _ in range(3):
        slower = sorted(round(draw.uniform(0, 2), 2) for _ in range(4))
        loss = round(draw.uniform(0.1, 0.6), 2)
        degrees = [first := draw.randrange(1, 4)] + [first * n for n in (2, 3, 6, 12)]
        computes = [2.0, *sorted(round(draw.uniform(2, 3), 2) for _ in range(4))]
        cases.append((degrees, [0.0, *slower], computes, loss))

    def those(good: Callable[[float, float, float, float], bool]) -> Callable[..., int]:
        """The last degree in a row from the first of which good(tensor, compute, first, loss)."""

        def found(degrees: list[int], tensor: list[float], own: list[float], loss: float) -> int:
            first, last = tensor[0] + own[0], degrees[0]
            for degree, waits, computes in zip(degrees, tensor, own, strict=True):
                last = degree if good(waits, computes, first, loss) else last
            return last

        return found

    right = those(lambda waits, computes, first, loss: first / (waits + computes) >= 1 - loss)

    def place(degrees: list[int], *case: Any) -> int:
        return degrees.index(right(degrees, *case))

    return Table(
        cases=cases,
        right=right,
        told=lambda degrees, tensor, computes, loss: (
            f"For degrees {degrees} with {tensor} s of collectives and {computes} s of compute, "
            f"and a loss of {loss:.3g},"
        ),
        read=number,
        expected="one of the degrees",
        slips={
            "Narrower matrices compute more slowly, which is a loss as well.":
                those(lambda waits, computes, _, loss: computes / (waits + computes) >= 1 - loss),
            "A loss of speed is no gain of time: a step twice as long has half the speed.":
                those(lambda waits, computes, first, loss: waits + computes <= (1 + loss) * first),
            "That looks at compute alone; nothing hides the collectives.":
                those(lambda _, computes, first, loss: first / computes >= 1 - loss),
            "That is the first degree that loses more.":
                lambda degrees, *case: [*degrees, 0][place(degrees, *case) + 1],
            "That is the place in the list; return the degree.": place,
            "That is the fastest degree, not the widest that is fast enough.":
                lambda degrees, tensor, own, _: min(
                    zip(map(sum, zip(tensor, own, strict=True)), degrees, strict=True)
                )[1],
            "That is the widest of all, whatever it loses.": lambda degrees, *_: degrees[-1],
        },
        solved="for {cases} lists, whose seconds are those of the small, the medium and the large "
        "job on three kinds of GPU. A node's eight are rarely the answer to a question of speed "
        "alone: what makes tensor groups wide is memory.",
    )  # fmt: skip


# ---- the bubble ----


@Exercise
def bubble() -> Table:
    """Grade function(samples, ranks, tensor, pipeline, context, batch, interleaved).

    Right is the bubble of 1F1B: a rank's waiting over the time in which it computes.
    """
    draw = draws(66)
    drawn = []
    for _ in range(4):
        pipeline, batch, micro = draw.choice([3, 6, 8]), draw.choice([1, 2]), draw.randrange(2, 9)
        data, tensor, context = draw.randrange(2, 9), draw.choice([2, 4]), draw.choice([1, 2, 4])
        ranks = data * tensor * pipeline * context
        samples = data * batch * micro * pipeline
        drawn.append((samples, ranks, tensor, pipeline, context, batch, draw.randrange(1, 4)))

    def grid(samples: int, ranks: int, *ways: int) -> tuple[Any, Grid]:
        tensor, pipeline, context, batch, stages = ways
        data = ranks // (tensor * pipeline * context)
        own = Grid("zero1", data, tensor, pipeline, context, 1, batch, stages)
        return asked(sized("large"), "H100", ranks, samples), own

    def share(micro: float, pipeline: int, stages: int) -> float:
        return models.bubble(pipeline, micro, stages)  # type: ignore[arg-type]

    def right(*case: int) -> float:
        return share(grids.micro_batches(*grid(*case)), case[3], case[6])

    def of(part: Callable[..., float]) -> Callable[..., float]:
        """A slip: another number of micro-batches."""
        return lambda *case: share(part(*case), case[3], case[6])

    return Table(
        cases=[(2048, 16_384, 8, 16, 1, 1, 1), (2048, 16_384, 8, 16, 4, 2, 4), *drawn],
        right=right,
        told="For {} samples on {} ranks with tensor {}, pipeline {}, context {}, micro-batches of "
        "{} samples and {} stages per rank",
        read=number,
        expected="a number from 0 up",
        same=lambda answer, expected: abs(answer - expected) <= 1e-9,
        show=lambda value: f"{value:.4g}",
        slips={
            "Ranks of a context group share their samples: they are no replicas of each other.":
                of(lambda samples, ranks, tensor, pipeline, _, batch, __:
                    samples * tensor * pipeline / ranks / batch),
            "Ranks of a tensor group work on the same samples: they are no replicas.":
                of(lambda samples, ranks, _, pipeline, context, batch, __:
                    samples * pipeline * context / ranks / batch),
            "A replica is a whole pipeline, not each rank of it.":
                of(lambda samples, ranks, tensor, _, context, batch, __:
                    samples * tensor * context / ranks / batch),
            "Those are a replica's samples; a micro-batch has several.":
                lambda *case: right(*case[:5], 1, case[6]),
            "All samples do not pass through one pipeline: each replica has its part of them.":
                of(lambda samples, *case: samples / case[4]),
            "The waits are v times as short with v stages per rank.":
                lambda *case: right(*case[:6], 1),
            "A rank waits for the P - 1 others, not for itself.":
                lambda *case: right(*case) * case[3] / (case[3] - 1),
            "That is the share of the whole step; compare the waits with the compute alone.":
                lambda *case: right(*case) / (1 + right(*case)),
        },
        solved="for {cases} grids. Every degree but data's leaves a replica more of the samples, "
        "so more micro-batches: a context degree fills a pipeline as well as a larger batch does.",
    )  # fmt: skip


# ---- what a rank holds ----


@Exercise
def held() -> Table:
    """Grade function(parameters, experts, data, tensor, pipeline, context, expert, strategy).

    Right are the bytes of weights, gradients and moments on a rank. `experts`: of the parameters,
    those of experts, which `expert` ranks share; all others are on each rank of data and context.
    """
    each, draw = bytes_each(AUTOCAST), draws(67)
    drawn = []
    for strategy in ("ddp", "zero1", "fsdp"):
        ways = [2 ** draw.randrange(1, 4) for _ in range(4)]
        experts = draw.randrange(100, 300) * 2**20
        dense = draw.randrange(20, 90) * 2**20
        drawn.append((dense + experts, experts, *ways, 2, strategy))

    def right(*case: Any, of: Any = each) -> float:
        parameters, experts, data, tensor, pipeline, context, expert, strategy = case
        parts, away = tensor * pipeline, experts - experts // expert
        count = (parameters - away) // parts
        return state(count, of, data * context, STAGES[strategy], away // parts)["total"]

    def with_ways(**ones: int) -> Callable[..., float]:
        """A slip: some degrees are forgotten."""
        names = ("data", "tensor", "pipeline", "context", "expert")

        def slip(parameters: int, experts: int, *case: Any) -> float:
            ways = dict(zip(names, case[:5], strict=True)) | ones
            return right(parameters, experts, *ways.values(), case[5])

        return slip

    def twice(parameters: int, experts: int, *case: Any) -> float:
        away = experts - experts // case[4]
        return right(parameters - away, 0, *case[:4], 1, case[5])

    def as_fsdp(*case: Any) -> float:
        return right(*case[:7], "fsdp")

    fixed = [
        (70 * 2**30, 0, 512, 1, 1, 1, 1, "fsdp"),
        (70 * 2**30, 0, 64, 8, 1, 1, 1, "ddp"),
        (400 * 2**30, 0, 128, 8, 16, 1, 1, "zero1"),
        (400 * 2**30, 0, 8, 8, 16, 16, 1, "zero1"),
        (640 * 2**30, 600 * 2**30, 16, 1, 16, 8, 64, "zero1"),
        (640 * 2**30, 600 * 2**30, 16, 1, 16, 8, 64, "fsdp"),
        (640 * 2**30, 600 * 2**30, 64, 4, 2, 1, 8, "ddp"),
    ]
    return numbers(
        within=0.4,
        cases=[*fixed, *drawn],
        right=right,
        told="For {} parameters, {} of them experts', data {}, tensor {}, pipeline {}, context {}, "
        "expert {} and {}",
        slips={
            "Ranks of a context group hold the same weights, so they share the state as well.":
                with_ways(context=1),
            "Each matrix lies on all ranks of a tensor group, a part on each.": with_ways(tensor=1),
            "A rank of a pipeline has its own layers alone.": with_ways(pipeline=1),
            "A rank has its own experts; others' lie on the other ranks of its expert group.":
                with_ways(expert=1),
            "The ranks of an expert group are among those of data and context: what these share "
            "of the experts is not shared once more.": twice,
            "That is all of it sharded; this strategy shards less.": as_fsdp,
            "Autocast's weights and gradients are in fp32: 4 + 4 + 8 bytes a parameter.":
                lambda *case: right(*case, of=bytes_each(MIXED)),
            "That is what all ranks of a replica hold together.":
                lambda *case: right(*case) * prod(case[3:6]),
            "Those are the moments alone.":
                lambda *case: right(*case, of=each._replace(weights=0, gradients=0)),
        },
        solved="for {cases} grids: `minidist.formulas.memory` says the same, down to a byte. "
        "Once data and context share it all, no other degree makes the state smaller.",
    )  # fmt: skip
