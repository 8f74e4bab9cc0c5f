"""How a data-parallel step scales with the ranks, when the batch is kept and when it grows."""

from functools import cache
from typing import NamedTuple

from course.widgets.cost import link_controls
from course.widgets.overlap import gradient_bytes
from course.widgets.page import Control, Slider, stops
from minidist.parallel.sharding.partition import MIB, assign
from minidist.planner.hardware import A100, B200, H100, UTILIZATION
from minidist.schedule.algorithms import halving_doubling_all_reduce
from minidist.schedule.cost import Link, price, switch

BEGIN = 16  # ranks that have `sequences` each, whether the batch is kept or grows
LENGTH = 1024  # tokens of a sequence
RANKS = [1 << bit for bit in range(17)]
SPEEDS = {UTILIZATION * gpu.flops: gpu.name.split()[0] for gpu in (A100, H100, B200)}


class Step(NamedTuple):
    """Seconds that each part of a step takes; the all-reduce runs during backward."""

    forward: float
    backward: float
    all_reduce: float

    @property
    def seconds(self) -> float:
        """From the beginning of forward to the last averaged gradient."""
        return self.forward + max(self.backward, self.all_reduce)


def step(tokens: float, ranks: int, flops: float, link: Link) -> Step:
    """Predict a step of a GPT of 24 blocks, 1,024 wide, whose gradients are float32.

    Args:
        tokens: of each rank.
        flops: operations a second that a rank reaches.
        link: from each rank to a switch.
    """
    parameters, buckets = _model()
    work = parameters * tokens / flops
    bucket = price(halving_doubling_all_reduce(ranks), switch(link))(4 * parameters / buckets)
    return Step(2 * work, 4 * work, buckets * bucket)


@cache
def _model() -> tuple[int, int]:
    """Its parameters, and how many buckets their gradients fill."""
    sizes = gradient_bytes()
    return sum(sizes) // 4, len(assign(sizes, MIB, 25 * MIB))


def scaling_slider(
    ranks: int = 256, sequences: int = 32, alpha: float = 10e-6, bandwidth: float = 50e9
) -> Slider:
    """Time and efficiency of a step under strong and weak scaling; where the network takes over."""
    parameters, buckets = _model()
    shares = [1 << bit for bit in range(11)]
    flops = sorted({*stops(13, 16, (1, 2, 5)), *SPEEDS})
    speed = UTILIZATION * H100.flops
    label = f"Sequences per rank at {BEGIN} ranks"
    counts, *link = link_controls(ranks, alpha, bandwidth)
    controls = [
        counts._replace(values=RANKS, texts=[f"{n:,}" for n in RANKS]),
        Control("sequences", label, shares, [*map(str, shares)], sequences),
        Control("flops", "A GPU computes", flops, [*map(_speed_text, flops)], speed),
        *link,
    ]
    return Slider(
        "scaling",
        "A step of data-parallel training on more and more ranks",
        controls,
        {
            "model": {"parameters": parameters, "buckets": buckets},
            "begin": BEGIN,
            "length": LENGTH,
            "ranks": RANKS,
        },
    )


def _speed_text(flops: float) -> str:
    named = f" ({SPEEDS[flops]} at {UTILIZATION:.0%})" if flops in SPEEDS else ""
    return f"{flops / 1e12:,.0f} TFLOP/s{named}"
