"""The report on work on lanes, and the calls that a reader yields as such work."""

from __future__ import annotations

from minidist.schedule.lanes import Lanes, end
from minidist.schedule.replay import Fault

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable

    from course.puzzles import Task


def report(work: Callable[[Lanes], str], names: list[str], task: Task) -> Task:
    """Let `work` fill lanes; it returns why that is right, or raises a `Fault`."""
    lanes, right = Lanes(), True
    try:
        says = work(lanes)
    except Fault as fault:
        says, right = str(fault), False
    takes, marks, rows = end(lanes.spans), [], []
    for mark in task["marks"]:
        slow = right and "par" in mark and takes > mark["par"] * (1 + 1e-9)
        own = f": yours takes {takes:.4g} ms, par {mark['par']:.4g}" if slow else ""
        marks.append([mark["says"] + own, right and not slow])
    for name in names:
        of_lane = [span for span in lanes.spans if span.lane == name]
        rows.append([name, [[span.kind, span.start, span.end, span.text] for span in of_lane]])
    times = [[name, f"{ms:.4g} ms"] for name, ms in [["yours", takes], *task["beside"]]]
    return {
        "right": right,
        "says": [says],
        "marks": marks,
        "table": {"caption": task["size"], "head": ["", "time"], "rows": times} if right else None,
        "lanes": {"end": takes, "rows": rows},
    }


def yielded(steps: object, name: str) -> list[object]:
    """All that a generator yields, if it is one and comes to an end."""
    if not hasattr(steps, "__iter__"):
        raise Fault(f"{name}(...) returns {steps!r}: it has to yield.")
    found: list[object] = []
    for step in steps:
        found.append(step)
        if len(found) > 1000:
            raise Fault(f"{name}(...) yields more than 1000 times. Does its loop end?")
    return found


def call(step: object, kinds: tuple[str, ...], below: int) -> tuple[str, int]:
    """A step such as forward(2), if it is one of those kinds and its number is below a limit."""
    if not (isinstance(step, tuple) and len(step) == 2 and step[0] in kinds):
        several = f"{', '.join(f'{kind}(...)' for kind in kinds[:-1])} or {kinds[-1]}(...)"
        raise Fault(f"It yields {step!r}: it may yield {several}.")
    kind, number = step
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < below:
        raise Fault(f"It yields {kind}({number!r}): there are only 0 to {below - 1}.")
    return kind, number


def caller(kind: str) -> Callable[[int], tuple[str, int]]:
    """A function for readers, such as forward, whose calls they yield."""

    def call(number: int) -> tuple[str, int]:
        return (kind, number)

    call.__name__ = call.__qualname__ = kind
    return call
