"""Judges which gradients travel together, and in which order the buckets leave."""

from __future__ import annotations

from course.puzzles.lanes import Lanes, report, yielded
from course.puzzles.schedule import Fault, listed

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable

    from course.puzzles.schedule import Task


def judge(function: Callable[..., object], task: Task, names: Task) -> Task:
    """The report on a function that yields buckets, lists of names of layers."""
    layers = {name: (ready, size) for name, ready, size in task["layers"]}

    def work(lanes: Lanes) -> str:
        clock = 0.0
        for name in sorted(layers, key=lambda name: layers[name][0]):
            takes = layers[name][0] - clock
            clock = lanes.add("backward", "backward", clock, takes, name)
        sent: list[str] = []
        given = [(name, *layers[name]) for name in layers]
        for bucket in yielded(function(given), task["function"]):
            if not isinstance(bucket, (list, tuple)) or not bucket:
                raise Fault(f"It yields {bucket!r}: a bucket is a list of names of layers.")
            for name in bucket:
                if name not in layers:
                    raise Fault(f"It yields {bucket!r}: there is no layer {name!r}.")
                if name in sent:
                    raise Fault(f"The gradient of {name!r} travels twice.")
                sent.append(name)
            ready = max(layers[name][0] for name in bucket)
            takes = task["alpha"] + task["beta"] * sum(layers[name][1] for name in bucket)
            lanes.add("network", "communication", ready, takes, " + ".join(bucket))
        left = [name for name in layers if name not in sent]
        if left:
            raise Fault(f"The gradient of {listed(left)} never travels.")
        return f"Every gradient travels once; the last has arrived after {lanes.end:.4g} ms."

    return report(work, ["backward", "network"], task)
