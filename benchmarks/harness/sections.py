"""A section measures one thing within its time; its errors are recorded, and the next one runs."""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from benchmarks.harness.record import Row
from benchmarks.harness.setups import Scope, Setup

TOTAL = 450.0  # seconds for all sections; what a launch needs to kill hung ranks comes on top
LEAST = 5.0  # seconds; a section with less is not begun
TRACEBACK_LINES = 12


class Clock:
    """How much time is left."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now = seconds, now
        self._end = now() + seconds

    def left(self) -> float:
        """Seconds until the end.

        Raises:
            TimeoutError: less than one is left.
        """
        if (left := self._end - self._now()) < 1:
            raise TimeoutError(f"the {self._seconds:.0f} s of this section are over")
        return left

    def share(self, parts: int) -> "Clock":
        """A clock with an equal share of the time left; raises as `left`."""
        return Clock(self.left() / parts, self._now)


Measure = Callable[[Scope, Clock], Iterator[Row]]


class Section(NamedTuple):
    """`measure` yields rows; when it raises, those before the error are kept.

    `seconds`: the most that it may take, besides what those before it have left.
    """

    name: str
    measure: Measure
    seconds: float


def in_each_setup(measure: Callable[[Setup, Scope, Clock], Iterator[Row]]) -> Measure:
    """Measure in one setup after the other, also when it failed in an earlier one."""

    def in_all(scope: Scope, clock: Clock) -> Iterator[Row]:
        errors: dict[str, Exception] = {}
        for done, setup in enumerate(scope.setups):
            try:
                for row in measure(setup, scope, clock.share(len(scope.setups) - done)):
                    yield {"setup": setup.name, "ranks": setup.ranks, **row}
            except Exception as error:
                errors[setup.name] = error
        if errors:
            lines = (f"{name}: {_first_line(error)}" for name, error in errors.items())
            raise ExceptionGroup("; ".join(lines), list(errors.values()))

    return in_all


def run(
    sections: Iterable[Section],
    scope: Scope,
    say: Callable[[str], object] = print,
    total: float = TOTAL,
    now: Callable[[], float] = time.monotonic,
    keep: Callable[[list[Row]], object] = lambda rows: None,
) -> tuple[list[Row], list[str]]:
    """All rows, each with its section's name, and the names of the sections that failed.

    `keep` is called with those that there are, after each one.
    """
    rows: list[Row] = []
    failed = []
    start, due = now(), 0.0
    for name, measure, seconds in sections:
        due = min(due + seconds, total)
        seconds = max(0.0, due - (now() - start))
        say(f"{name}: at most {seconds:.0f} s ...")
        before, error = len(rows), None
        try:
            if seconds < LEAST:
                raise TimeoutError("not begun: the sections before it took all the time")
            for row in measure(scope, Clock(seconds, now)):
                rows.append({"section": name, **row})  # one by one: those before an error are kept
                keep(rows)
        except Exception as raised:
            error = _first_line(raised)
            lines = "".join(traceback.format_exception(raised)).splitlines()
            rows.append({"section": name, "error": error, "traceback": lines[-TRACEBACK_LINES:]})
            failed.append(name)
        say(f"{name}: {f'FAILED: {error}' if error else f'{len(rows) - before} rows'}")
    return rows, failed


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
