"""Pars: our solution has them, and no answer is better. Small ones are searched in full here."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from course.puzzles import training
from course.puzzles.catalog import PUZZLES
from course.puzzles.collective import measured, prove, shown_as
from course.puzzles.judge import GIVEN, run
from course.puzzles.tasks import BUCKET, log

COLLECTIVES = [name for name, puzzle in PUZZLES.items() if "collective" in puzzle.task]


def task_of(name: str) -> Any:
    """As a page has it."""
    return json.loads(json.dumps(PUZZLES[name].task))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_our_solution_has_par_and_par_is_no_worse(name: str) -> None:
    task = task_of(name)
    names: dict[str, Any] = {**GIVEN[task["judge"]]}
    exec(PUZZLES[name].solution, names)
    for mark in task["marks"][1:]:
        for (metric, pars), n in product(mark["limits"].items(), mark["ranks"]):
            replay, wrong = prove(names[task["function"]], task, names, n)
            assert not wrong
            value = measured(replay, {"metric": metric, "links": task["links"]}, task)
            assert value <= pars[str(n)] * (1 + 1e-9)
            if "4(N − 1)" not in mark["says"]:  # half-way
                assert value == pytest.approx(pars[str(n)])


@pytest.mark.parametrize("name", ["buckets", "fsdp", "pipeline"])
def test_our_order_has_par(name: str) -> None:
    task = task_of(name)
    ends = run(PUZZLES[name].solution, task)["lanes"]["end"]
    assert ends == pytest.approx(task["marks"][2]["par"])
    assert ends < task["marks"][1]["par"]


# ---- collectives ----

Held = tuple[int, ...]  # a bit for each rank whose part is in a chunk, on each rank


def after_a_step(held: Held) -> Iterator[tuple[Held, int]]:
    """All that ranks can hold after one more step, and the number of messages.

    A rank sends a chunk once and receives it once; what it receives is added, or copied.
    """
    ranks = range(len(held))
    for sources in product(ranks, repeat=len(held)):  # a rank that is its own source gets nothing
        senders = [src for rank, src in enumerate(sources) if src != rank]
        if len({*senders}) == len(senders):
            pairs = [(held[rank], held[src]) for rank, src in enumerate(sources)]
            yield (
                tuple([theirs if own & theirs else own | theirs for own, theirs in pairs]),
                len(senders),
            )


def fewest_messages(ranks: int, steps: int) -> int | None:
    """The fewest messages with which all ranks get the sum of a chunk in so many steps, if any."""
    everything = (1 << ranks) - 1
    states: dict[Held, int] = {tuple(1 << rank for rank in range(ranks)): 0}
    for left in reversed(range(steps)):
        then: dict[Held, int] = {}
        for held, count in states.items():
            for now, more in after_a_step(held):
                most = max(map(int.bit_count, now)) * 2**left
                few = count + more + sum(each != everything for each in now) <= 2 * ranks
                if few and most >= ranks and (left or {*now} == {everything}):
                    then[now] = min(count + more, then.get(now, count + more))
        states = then
    return min(states.values(), default=None)


@pytest.mark.parametrize(
    ("ranks", "steps", "fewest"), [(2, 1, 2), (3, 2, None), (3, 3, 4), (4, 2, 8)]
)
def test_fewer_steps_do_not_do_or_need_more_than_twice_n_minus_one_messages(
    ranks: int, steps: int, fewest: int | None
) -> None:
    """`log_steps`: not for an odd number. `all_reduce`: 6 are all that 3/2 G each allow."""
    assert fewest_messages(ranks, steps) == fewest


def test_what_saves_steps_between_two_nodes_costs_more_than_that() -> None:
    """One more message per chunk, even inside, takes longer than all the steps that it may save."""
    task = task_of("two_nodes")
    (inside, per_byte), _ = task["links"]
    for n, rows in task["beside"].items():
        (name, steps, _, least), (other, *_, slower) = rows[-1], rows[-2]
        assert (name, other) == ("at least", "nodes first")
        assert slower > 1.02 * least
        assert per_byte * BUCKET / int(n) > (steps - log(int(n))) * inside


def test_the_least_time_of_a_broadcast_is_that_of_three_doublings_and_one_tensor() -> None:
    name, steps, sent, time, *_ = task_of("broadcast")["beside"]["8"][-1]
    assert (name, steps, sent) == ("at least", 3, 1)
    assert time == pytest.approx(3 * 10e-6 + 25 * 2**20 / 50e9)
    assert [shown_as(each, "time") for each in (2 * time, 1.5e-5)] == ["1.11 ms", "15 µs"]


# ---- a training step ----


def partitions(names: list[str]) -> Iterator[list[list[str]]]:
    """All ways to put names into groups."""
    if not names:
        yield []
        return
    first, *others = names
    for groups in partitions(others):
        yield [[first], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [first, *group], *groups[at + 1 :]]


def test_no_buckets_are_done_earlier_than_par() -> None:
    """Of all ways to make buckets; given them, none gains by leaving before one that is ready."""
    when = {name: ready for name, ready, _ in training.LAYERS}
    ends = []
    for buckets in partitions([*when]):
        buckets.sort(key=lambda names: max(when[name] for name in names))
        ends.append(training.arrival(buckets))
    assert len(ends) == 4140
    marks = task_of("buckets")["marks"]
    assert min(ends) == pytest.approx(marks[2]["par"])
    assert sorted(ends)[1] <= marks[1]["par"]


def test_the_goal_of_buckets_has_the_time_of_one() -> None:
    alpha, beta = (training.network()[name] for name in ("alpha", "beta"))
    goal = PUZZLES["buckets"].goal
    assert f"takes {alpha:.3g} ms, and {beta:.3g} ms more per MiB" in goal
