"""How a data-parallel step scales with the ranks, when the batch is kept and when it grows."""

from typing import NamedTuple

from course.widgets.cost import link_controls
from course.widgets.page import Slider, control, stops
from minidist.memory.state import AUTOCAST, Strategy
from minidist.planner.hardware import A100, B200, H100
from minidist.planner.jobs import SMALL
from minidist.planner.step import TrainingStep
from minidist.schedule.algorithms import halving_doubling_all_reduce
from minidist.schedule.cost import Link, price, switch

BEGIN = 16  # ranks that have `sequences` each, whether the batch is kept or grows
LENGTH = 1024  # tokens of a sequence
RANKS = [1 << bit for bit in range(17)]
SPEEDS = {gpu.rate(SMALL.width): gpu.name.split()[0] for gpu in (A100, H100, B200)}
BUCKETS = TrainingStep(SMALL, H100, 8, 1, 1, AUTOCAST, "adam", 0.0).pieces(Strategy.DDP)


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
    """Predict a step of the job `SMALL`, whose gradients are float32.

    An all-reduce is priced at the least that it can take: 2 log2 N messages one after the other,
    and 2 (N - 1) / N times the bytes. NCCL's trees come close to that. `tokens`: of each rank;
    `flops`: operations per second that it reaches; `link`: of a node's rate, if ranks fill nodes.
    """
    work = SMALL.parameters * tokens / flops
    least = price(halving_doubling_all_reduce(ranks), switch(link))
    return Step(2 * work, 4 * work, BUCKETS * least(4 * SMALL.parameters / BUCKETS))


def scaling_slider() -> Slider:
    """Time and efficiency of a step under strong and weak scaling; where the network takes over."""
    shares = [1 << bit for bit in range(11)]
    flops = sorted({*stops(13, 16, (1, 2, 5)), *SPEEDS})
    controls = [
        control("ranks", "Ranks", RANKS, 256),
        control("sequences", f"Sequences per rank at {BEGIN} ranks", shares, 32, str),
        control("flops", "A GPU computes", flops, H100.rate(SMALL.width), _speed_text),
        *link_controls(256, H100.node_network)[1:],
    ]
    model = {"parameters": SMALL.parameters, "buckets": BUCKETS}
    data = {"model": model, "begin": BEGIN, "length": LENGTH, "ranks": RANKS}
    title = "A step of data-parallel training on more and more ranks"
    return Slider("scaling", title, controls, data)


def _speed_text(flops: float) -> str:
    named = f" ({SPEEDS[flops]})" if flops in SPEEDS else ""
    return f"{flops / 1e12:,.0f} TFLOP/s{named}"
