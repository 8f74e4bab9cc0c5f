"""Graders of the lab on local SGD: the outer step, its bytes, and who is in a round."""

from functools import partial
from itertools import accumulate
from random import Random
from typing import Any

import torch

from course.ask.table import Exercise, Table, numbers
from course.ask.verdict import draws, list_of, number, whole
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.traffic import traffic

Vector = list[float]


@Exercise
def outer_step() -> Table:
    """Grade function(start, replicas, velocity, lr, momentum): the new weights and velocity."""

    def slowed(start: Vector, replicas: list[Vector], old: Vector, lr: float, m: float) -> Any:
        moved = (m * vector(old) + lr * change(start, replicas)).tolist()
        return [outer(start, replicas, old, lr, m)[0], moved]

    return Table(
        cases=[([1.0, 2.0], [[0.5, 2.0], [0.0, 3.0]], [0.0, 0.0], 1.0, 0.0), *outer_cases()],
        right=outer,
        told="For start {}, replicas {}, velocity {}, lr {} and momentum {}",
        read=list_of(list_of(number)),
        expected="two lists: the new weights, and the new velocity",
        same=alike,
        show=lambda both: f"{[[round(value, 4) for value in each] for each in both]}",
        slips={
            "Take the mean of the changes, not their sum.":
                lambda *case: outer(*case, factor=len(case[1])),
            "That leads uphill: a change is where the round began, minus where the replica is.":
                partial(outer, factor=-1),
            "That is plain averaging; the outer optimizer has a learning rate and a velocity.":
                lambda _, replicas, velocity, *__: [mean(replicas).tolist(), velocity],
            "That is classical momentum; Nesterov's adds the change to the new velocity once more.":
                partial(outer, nesterov=False),
            "The velocity is a sum of changes; the learning rate comes in where weights are moved.":
                slowed,
            "The step starts where the round began, not where the replicas are on average.":
                lambda *case: outer(*case, weights=mean(case[1])),
            "The velocity has forgotten the rounds before.":
                lambda start, replicas, _, *how: outer(start, replicas, [0.0] * len(start), *how),
        },
        solved="for all {cases} rounds: the weights and the velocity are those of torch's SGD with "
        "nesterov=True, whose gradient is the mean change.",
    )  # fmt: skip


def outer_cases() -> list[Any]:
    """Rounds of 1 to 5 replicas of 1 to 4 weights."""
    draw, cases = draws(38), list[Any]()
    for count in (2, 3, 4, 1, 5, 2):
        size = draw.randrange(1, 5)
        vectors = [[draw.randrange(-20, 20) / 4 for _ in range(size)] for _ in range(count + 2)]
        start, velocity, *replicas = vectors
        cases.append((start, replicas, velocity, draw.choice((0.5, 0.7)), draw.choice((0.5, 0.9))))
    return cases


def vector(values: Any) -> torch.Tensor:
    """Numbers of one vector, or of several."""
    return torch.tensor(values, dtype=torch.float64)


def change(start: Vector, replicas: list[Vector]) -> torch.Tensor:
    """Mean of how far the replicas have come, as gradients point: uphill."""
    return vector(start) - mean(replicas)


def mean(replicas: list[Vector]) -> torch.Tensor:
    """Mean weights of the replicas."""
    return vector(replicas).mean(0)


def outer(
    start: Vector,
    replicas: list[Vector],
    velocity: Vector,
    lr: float,
    momentum: float,
    *,
    weights: torch.Tensor | None = None,
    factor: float = 1,
    nesterov: bool = True,
) -> list[Vector]:
    """The weights and the velocity after a step of torch's SGD, by Nesterov's momentum.

    Those of slips begin at other weights, or take a multiple of the mean change.
    """
    weights = (vector(start) if weights is None else weights).requires_grad_()
    weights.grad = factor * change(start, replicas)
    sgd = torch.optim.SGD([weights], lr, momentum, nesterov=nesterov and momentum > 0)
    moved = vector(velocity)
    sgd.state[weights]["momentum_buffer"] = moved
    sgd.step()
    if not momentum:  # torch keeps none, and what it would be is the change
        moved = weights.grad
    return [weights.tolist(), moved.tolist()]


def alike(found: list[Vector], right: list[Vector]) -> bool:
    """True if two answers are equal up to rounding."""
    if [*map(len, found)] != [*map(len, right)]:
        return False
    return torch.allclose(vector(found), vector(right), rtol=0, atol=1e-6)


@Exercise
def bytes_per_sample() -> Table:
    """Grade function(parameters, ranks, every, batch): the bytes a rank sends for each sample."""
    draw = draws(39)
    cases = [(1000, 4, 1, 8), (1000, 4, 100, 8), (12, 3, 5, 1), (6400, 2, 10, 32), (500, 1, 10, 4)]
    for _ in range(6):
        ranks = draw.randrange(2, 17)
        cases.append((ranks * draw.randrange(1, 500), ranks, draw.randrange(2, 200), 4))
        cases.append((ranks * draw.randrange(1, 500), ranks, 1, draw.randrange(2, 64)))

    def ring(size: int, n: int) -> int:
        return int(traffic(ring_all_reduce(n), size).sent_bytes[0])

    return numbers(
        within=1e-6,
        cases=cases,
        right=lambda size, n, h, batch: ring(size, n) / h / batch,
        told="For {} parameters, {} ranks, rounds of {} steps, and {} samples to a step of a rank",
        slips={
            "A ring all-reduce has two phases; that is one of them.":
                lambda size, n, h, batch: ring(size, n) / 2 / h / batch,
            "That is per step: a step has a batch of samples.":
                lambda size, n, h, _: ring(size, n) / h,
            "That is per sample of DDP, which sends in every step.":
                lambda size, n, _, batch: ring(size, n) / batch,
            "Those are the samples of all ranks; count what one sends for each of its own.":
                lambda size, n, h, batch: ring(size, n) / h / batch / n,
            "That is what all ranks send together.":
                lambda size, n, h, batch: n * ring(size, n) / h / batch,
            "A parameter has 4 bytes in fp32.":
                lambda size, n, h, batch: ring(size, n) / 4 / h / batch,
            "Nothing is sent to oneself: it is (N - 1)/N of that.":
                lambda size, _, h, batch: 8 * size / h / batch,
            "A longer round sends less for each sample, not more.":
                lambda size, n, h, batch: ring(size, n) * h / batch,
        },
        solved="for {cases} cases: H and the batch divide in the same way. A batch H times as "
        "large would save as much, but would be one step where local SGD takes H.",
    )  # fmt: skip


Event = tuple[float, int, str]  # when, of which worker, and what


@Exercise
def in_the_round() -> Table:
    """Grade function(members, events, patience): whose changes are in the sum.

    Events are (seconds, worker, what), in order: its change "arrives", it "dies", or it "joins".
    """
    cases: list[tuple[list[int], list[Event], float]] = [
        ([0, 1], [(1, 0, "arrives"), (2, 1, "arrives")], 10),
        ([0, 1, 2], [(1, 0, "arrives"), (2, 1, "dies"), (3, 2, "arrives")], 10),
        ([0, 1, 2], [(1, 0, "arrives"), (2, 0, "dies"), (3, 2, "arrives"), (4, 1, "arrives")], 10),
        ([0, 1], [(1, 2, "joins"), (2, 0, "arrives"), (3, 1, "arrives")], 10),
        ([0, 1, 2], [(5, 2, "arrives"), (9, 0, "arrives"), (16, 1, "arrives")], 10),
        ([0, 1], [(9, 1, "arrives"), (18, 0, "arrives")], 10),
        ([0, 1, 2], [(1, 2, "dies"), (2, 2, "joins"), (3, 0, "arrives"), (4, 1, "arrives")], 10),
    ]
    draw = draws(40)
    cases += [drawn(draw) for _ in range(40)]
    return Table(
        cases=cases,
        right=present,
        told=lambda members, events, patience: (
            f"With members {members}, patience {patience:g} s and these events: "
            + ", ".join(f"{worker} {what} at {when:g} s" for when, worker, what in events)
        ),
        read=lambda answer: sorted(map(whole, answer)),
        expected="the workers' numbers",
        slips={
            "A change that has arrived counts, even if its sender dies afterwards.":
                lambda *case: sorted({*present(*case)} - who(case[1], "dies")),
            "One whose change never came has no part in the sum.": lambda members, *_: members,
            "A newcomer has no change yet: it begins with the next round.":
                lambda *case: sorted({*present(*case)} | who(case[1], "joins")),
            "Who comes after the deadline is left behind.":
                lambda members, events, _: present(members, events, float("inf")),
            "Patience begins with the first change, not with the round.":
                lambda _, events, patience: sorted(who(events, "arrives", patience)),
            "A change that comes before the deadline counts, not the first one alone.":
                lambda members, events, _: present(members, events, 0),
            "Those who are alive at the end have not all sent a change in time.":
                lambda members, events, _: sorted({*members} - who(events, "dies")),
        },
        solved="for all {cases} rounds. A worker that dies or hangs costs a round its change, and "
        "nobody else's.",
    )  # fmt: skip


def who(events: list[Event], what: str, until: float = float("inf")) -> set[int]:
    """Workers to whom something happens in time."""
    return {worker for when, worker, each in events if each == what and when <= until}


def present(members: list[int], events: list[Event], patience: float) -> list[int]:
    """Members whose changes arrive at most `patience` seconds after the first."""
    first = min((when for when, _, what in events if what == "arrives"), default=0.0)
    return sorted(who(events, "arrives", first + patience))


def drawn(draw: Random) -> tuple[list[int], list[Event], float]:
    """A round of some members, some of whom die or are late, and some newcomers."""
    members, happens = sorted(draw.sample(range(9), draw.randrange(2, 6))), list[tuple[int, str]]()
    for worker in draw.sample(members, len(members)):
        fate = draw.choice((["dies"], ["arrives", "dies"], ["arrives"], ["arrives"]))
        happens += [(worker, what) for what in fate]
    happens += draw.choice(([], [(9, "joins")]))
    moments = accumulate(draw.randrange(1, 5) for _ in happens)
    events: list[Event] = [(at, *what) for at, what in zip(moments, happens, strict=True)]
    return members, events, draw.randrange(1, 13) + 0.5  # nothing comes just when it ends
