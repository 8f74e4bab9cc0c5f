"""Sections: each measures one thing within its time; what goes wrong in one stays in it."""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row

TOTAL = 450.0  # seconds for all sections; what a launch needs to end hung ranks comes on top
LEAST = 5.0  # seconds; a section that has less is not begun
TAIL = 12  # lines of a traceback that are kept


class Clock:
    """How much time is left."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now = seconds, now
        self._end = now() + seconds

    def left(self) -> float:
        """Seconds until the end; not below zero."""
        return max(0.0, self._end - self._now())

    def share(self, of: int = 1) -> float:
        """Seconds for the next one of so many things that are still to do.

        Raises:
            TimeoutError: hardly any time is left.
        """
        if self.left() < 1:
            raise TimeoutError(f"the {self.seconds:.0f} s of this section are over")
        return self.left() / of


Measure = Callable[[Where, Clock], Iterator[Row]]


class Section(NamedTuple):
    """`measure` yields rows as it goes; those that it has yielded are kept when it then raises.

    `seconds`: the most that it may take.
    """

    name: str
    measure: Measure
    seconds: float


def in_each_world(measure: Callable[[World, Where, float], Iterator[Row]]) -> Measure:
    """Measure in one world after the other, also when it failed in an earlier one."""

    def in_all(where: Where, clock: Clock) -> Iterator[Row]:
        errors: dict[str, Exception] = {}
        for done, world in enumerate(where.worlds):
            try:
                for row in measure(world, where, clock.share(len(where.worlds) - done)):
                    yield {"world": world.name, "ranks": world.ranks, **row}
            except Exception as error:
                errors[world.name] = error
        if errors:
            told = (f"{name}: {_first_line(error)}" for name, error in errors.items())
            raise ExceptionGroup("; ".join(told), list(errors.values()))

    return in_all


def worst(rows: tuple[Row, ...]) -> Row:
    """Of the rows of all ranks one: what holds on all of them, and the largest numbers."""
    whole = dict(rows[0])
    for key, value in whole.items():
        if isinstance(value, bool):
            whole[key] = all(row[key] for row in rows)
        elif isinstance(value, int | float):
            numbers = [row[key] for row in rows]
            whole[key] = next((n for n in numbers if n != n), max(numbers))  # NaN is worse than any
    return whole


def run(
    sections: Iterable[Section],
    where: Where,
    say: Callable[[str], object] = print,
    total: float = TOTAL,
    now: Callable[[], float] = time.monotonic,
) -> tuple[list[Row], list[str]]:
    """All rows, each with its section's name, and the names of the sections that failed."""
    rows: list[Row] = []
    failed = []
    clock = Clock(total, now)
    for name, measure, seconds in sections:
        most = min(seconds, clock.left())
        say(f"{name}: at most {most:.0f} s ...")
        found, error = _guarded(measure, where, Clock(most, now))
        rows += [{"section": name, **row} for row in [*found, *error]]
        if error:
            failed.append(name)
            say(f"{name}: FAILED: {error[0]['error']}")
        else:
            say(f"{name}: {len(found)} row{'s' if len(found) > 1 else ''}")
    return rows, failed


def _guarded(measure: Measure, where: Where, clock: Clock) -> tuple[list[Row], list[Row]]:
    """The rows of a section, and one that says what went wrong, if anything."""
    rows: list[Row] = []
    try:
        if clock.left() < LEAST:
            raise TimeoutError("not begun: the sections before it took all the time")
        for row in measure(where, clock):
            rows.append(row)  # one by one: those before an error are kept
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).splitlines()
        return rows, [{"error": _first_line(error), "traceback": lines[-TAIL:]}]
    return rows, []


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
