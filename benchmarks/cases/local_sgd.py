"""Loss over bytes: a small GPT by DDP, by plain averages, and by DiLoCo, in rounds of H steps.

Nothing here is timed. The losses are those of one seed, and of one learning rate, which is DDP's.
"""

from collections.abc import Iterator

from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import Scope, Setup
from course.chapters.keep_going.curves import learned
from course.training.rounds import Work

STEPS, LOOKS = 100, 10  # steps between two looks at the loss; how often it is looked at
PLAIN = (1.0, 0.0)  # learning rate and momentum of the outer SGD
OUTER = {"averages": (PLAIN,), "DiLoCo": ((0.7, 0.5), (0.7, 0.9))}
WAYS = (
    ("DDP", 1, PLAIN),
    *((way, every, how) for way, hows in OUTER.items() for how in hows for every in (10, 100)),
)


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each way: what a rank has sent, and the loss, after so many steps."""
    looks = scope.rounds or LOOKS
    for way, every, outer in WAYS:
        work = Work(width=scope.width, every=every, outer=outer)
        arguments = work, way, looks * STEPS, STEPS
        points, *_ = setup.launch(learned, *arguments, timeout=clock.left())
        parameters = sum(each.numel() for each in work.model().parameters())
        yield {
            "what": "curve",
            "way": way,
            "every": every,
            "width": scope.width,
            "parameters": parameters,
            "rows": work.rows,
            "outer": list(outer),
            "steps": [point.step for point in points],
            "sent_bytes": [point.bytes_sent for point in points],
            "loss": [round(point.loss, 4) for point in points],
        }
