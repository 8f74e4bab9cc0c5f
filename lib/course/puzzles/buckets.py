"""Judges which gradients travel together, and in which order the buckets leave."""

from __future__ import annotations

from course.puzzles.lanes import report, yielded
from minidist.schedule.lanes import Lanes, end
from minidist.schedule.replay import Fault, listing

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from course.puzzles import Task

    Layers = Mapping[str, tuple[float, float]]  # ms at which a gradient is ready, and its MiB


def judge(function: Callable[..., object], task: Task, names: Task) -> Task:
    """The report on a function that yields buckets, lists of names of layers."""
    layers = {name: (ready, size) for name, ready, size in task["layers"]}

    def work(lanes: Lanes) -> str:
        clock = 0.0
        for name in sorted(layers, key=lambda name: layers[name][0]):
            takes = layers[name][0] - clock
            clock = lanes.do("backward", "backward", clock, takes, name)
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
            send(lanes, bucket, layers, task)
        left = [name for name in layers if name not in sent]
        if left:
            raise Fault(f"The gradient of {listing(left)} never travels.")
        return f"Every gradient travels once; the last has arrived after {end(lanes.spans):.4g} ms."

    return report(work, ["backward", "network"], task)


def send(lanes: Lanes, bucket: Sequence[str], layers: Layers, link: Task) -> float:
    """Send a bucket once all of it is ready; return when it has arrived, in ms."""
    ready = max([layers[name][0] for name in bucket])
    takes = link["alpha"] + link["beta"] * sum([layers[name][1] for name in bucket])
    return lanes.do("network", "communication", ready, takes, " + ".join(bucket))
