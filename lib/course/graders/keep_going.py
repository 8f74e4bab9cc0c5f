"""Graders of the lab on local SGD: the outer step, its bytes, and who is in a round."""

from itertools import accumulate, chain
from typing import Any

import torch

from course.graders.table import Exercise, Table, numbers
from course.verdict import draws, list_of, number, whole
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.traffic import traffic

Vector = list[float]


@Exercise
def outer_step() -> Table:
    """Grade function(start, replicas, velocity, lr, momentum): the new weights and velocity.

    torch's SGD with Nesterov's momentum is the judge.
    """

    def right(
        start: Vector, replicas: list[Vector], velocity: Vector, lr: float, momentum: float
    ) -> list[Vector]:
        return outer(start, mean(changes(start, replicas)), velocity, lr, momentum)

    return Table(
        cases=[([1.0, 2.0], [[0.5, 2.0], [0.0, 3.0]], [0.0, 0.0], 1.0, 0.0), *outer_cases()],
        right=right,
        told="For start {}, replicas {}, velocity {}, lr {} and momentum {}",
        read=list_of(list_of(number)),
        expected="two lists: the new weights, and the new velocity",
        same=alike,
        show=lambda both: f"{[[round(value, 4) for value in each] for each in both]}",
        slips={
            "Take the mean of the changes, not their sum.":
                lambda start, replicas, *rest: outer(
                    start, total(changes(start, replicas)), *rest
                ),
            "That leads uphill: a change is where the round began, minus where the replica is.":
                lambda start, replicas, *rest: outer(
                    start, [-value for value in mean(changes(start, replicas))], *rest
                ),
            "That is plain averaging; the outer optimizer has a learning rate and a velocity.":
                lambda start, replicas, velocity, lr, momentum: [mean(replicas), velocity],
            "That is classical momentum; Nesterov's adds the change to the new velocity once more.":
                lambda start, replicas, velocity, lr, momentum: outer(
                    start, mean(changes(start, replicas)), velocity, lr, momentum, nesterov=False
                ),
            "The velocity is a sum of changes; the learning rate comes in where weights are moved.":
                lambda start, replicas, velocity, lr, momentum: [
                    right(start, replicas, velocity, lr, momentum)[0],
                    [
                        momentum * old + lr * new
                        for old, new in zip(
                            velocity, mean(changes(start, replicas)), strict=True
                        )
                    ],
                ],
            "The step starts where the round began, not where the replicas are on average.":
                lambda start, replicas, *rest: outer(
                    mean(replicas), mean(changes(start, replicas)), *rest
                ),
            "The velocity has forgotten the rounds before.":
                lambda start, replicas, velocity, lr, momentum: right(
                    start, replicas, [0.0] * len(start), lr, momentum
                ),
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


def changes(start: Vector, replicas: list[Vector]) -> list[Vector]:
    """How far each replica has come, as gradients point: uphill."""
    return [[a - b for a, b in zip(start, replica, strict=True)] for replica in replicas]


def total(vectors: list[Vector]) -> Vector:
    """Their sum."""
    return [sum(values) for values in zip(*vectors, strict=True)]


def mean(vectors: list[Vector]) -> Vector:
    """Their mean."""
    return [value / len(vectors) for value in total(vectors)]


def outer(
    start: Vector, gradient: Vector, velocity: Vector, lr: float, momentum: float, **how: bool
) -> list[Vector]:
    """The weights and the velocity after a step of torch's SGD, by Nesterov's momentum."""
    weights = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    nesterov = how.get("nesterov", True) and momentum > 0
    sgd = torch.optim.SGD([weights], lr, momentum, nesterov=nesterov)
    moved = torch.tensor(velocity, dtype=torch.float64)
    sgd.state[weights]["momentum_buffer"] = moved
    weights.grad = torch.tensor(gradient, dtype=torch.float64)
    sgd.step()
    if not momentum:  # torch keeps none, and what it would be is the change
        moved = weights.grad
    return [weights.tolist(), moved.tolist()]


def alike(found: list[Vector], right: list[Vector]) -> bool:
    """Whether two answers are the same but for rounding."""
    if [*map(len, found)] != [*map(len, right)]:
        return False
    pairs = zip(chain(*found), chain(*right), strict=True)
    return all(abs(one - other) < 1e-6 for one, other in pairs)


@Exercise
def bytes_per_sample() -> Table:
    """Grade function(parameters, ranks, every, batch): the bytes a rank sends for each sample."""
    draw = draws(39)
    cases = [(1000, 4, 1, 8), (1000, 4, 100, 8), (12, 3, 5, 1), (6400, 2, 10, 32), (500, 1, 10, 4)]
    for _ in range(6):
        ranks = draw.randrange(2, 17)
        cases.append((ranks * draw.randrange(1, 500), ranks, draw.randrange(2, 200), 4))
        cases.append((ranks * draw.randrange(1, 500), ranks, 1, draw.randrange(2, 64)))

    def ring(parameters: int, ranks: int) -> int:
        return int(traffic(ring_all_reduce(ranks), parameters).sent_bytes[0])

    return numbers(
        unit="bytes",
        within=1e-6,
        cases=cases,
        right=lambda parameters, ranks, every, batch: ring(parameters, ranks) / every / batch,
        told="For {} parameters, {} ranks, rounds of {} steps, and {} samples to a step of a rank",
        slips={
            "A ring all-reduce has two phases; that is one of them.":
                lambda parameters, ranks, every, batch:
                    ring(parameters, ranks) / 2 / every / batch,
            "That is per step: a step has a batch of samples.":
                lambda parameters, ranks, every, _: ring(parameters, ranks) / every,
            "That is per sample of DDP, which sends in every step.":
                lambda parameters, ranks, _, batch: ring(parameters, ranks) / batch,
            "Those are the samples of all ranks; count what one sends for each of its own.":
                lambda parameters, ranks, every, batch:
                    ring(parameters, ranks) / every / batch / ranks,
            "That is what all ranks send together.":
                lambda parameters, ranks, every, batch:
                    ring(parameters, ranks) * ranks / every / batch,
            "A parameter has 4 bytes in fp32.":
                lambda parameters, ranks, every, batch:
                    ring(parameters, ranks) / 4 / every / batch,
            "Nothing is sent to oneself: it is (N - 1)/N of that.":
                lambda parameters, ranks, every, batch: 8 * parameters / every / batch,
            "A longer round sends less for each sample, not more.":
                lambda parameters, ranks, every, batch: ring(parameters, ranks) * every / batch,
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
    cases += [drawn(draw.randrange(1, 10**6)) for _ in range(40)]
    return Table(
        cases=cases,
        right=present,
        told=lambda members, events, patience: (
            f"With members {members}, patience {patience:g} s and the events "
            + ", ".join(f"{what} {worker} at {when:g} s" for when, worker, what in events)
        ),
        read=lambda answer: sorted(map(whole, answer)),
        expected="the workers' numbers",
        slips={
            "A change that has arrived counts, even if its sender dies afterwards.":
                lambda members, events, patience: sorted(
                    {*present(members, events, patience)}
                    - {worker for _, worker, what in events if what == "dies"}
                ),
            "One whose change never came has no part in the sum.":
                lambda members, events, _: members,
            "A newcomer has no change yet: it begins with the next round.":
                lambda members, events, patience: sorted(
                    {*present(members, events, patience)}
                    | {worker for _, worker, what in events if what == "joins"}
                ),
            "Who comes after the deadline is left behind.":
                lambda members, events, _: present(members, events, float("inf")),
            "Patience begins with the first change, not with the round.":
                lambda members, events, patience: sorted(
                    worker
                    for when, worker, what in events
                    if what == "arrives" and when <= patience
                ),
            "Those who are alive at the end have not all sent a change in time.":
                lambda members, events, _: sorted(
                    {*members} - {worker for _, worker, what in events if what == "dies"}
                ),
        },
        solved="for all {cases} rounds. A worker that dies or hangs costs a round its change, and "
        "nobody else's.",
    )  # fmt: skip


def present(members: list[int], events: list[Event], patience: float) -> list[int]:
    """Whose changes arrive in time: at most `patience` seconds after the first."""
    arrived = [(when, worker) for when, worker, what in events if what == "arrives"]
    deadline = min(arrived, default=(0.0, 0))[0] + patience
    return sorted(worker for when, worker in arrived if when <= deadline)


def drawn(seed: int) -> tuple[list[int], list[Event], float]:
    """A round of some members, some of whom die or are late, and some newcomers."""
    draw = torch.Generator().manual_seed(seed)

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=draw))

    members = list(range(2 + below(4)))
    moments = list(accumulate(1 + below(4) for _ in range(20)))
    events: list[Event] = []
    for worker in [members[i] for i in torch.randperm(len(members), generator=draw).tolist()]:
        fate = below(4)
        if fate:  # else it dies before it has sent anything
            events.append((moments[len(events)], worker, "arrives"))
        if fate < 2:
            events.append((moments[len(events)], worker, "dies"))
    if below(2):
        events.append((moments[len(events)], len(members), "joins"))
    return members, events, float(1 + below(12))
