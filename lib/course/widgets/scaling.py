"""How a data-parallel step scales with the ranks, when the batch is kept and when it grows."""

from course.widgets.memory import own
from course.widgets.page import Slider, card, control, gpus
from minidist.planner.hardware import ACCELERATORS, H100
from minidist.planner.jobs import SHAPES

BEGIN = 64  # ranks that have `sequences` each, whether the batch is kept or grows
LENGTH = 256  # tokens of a sequence
RANKS = [1 << bit for bit in range(13)]


def scaling_slider() -> Slider:
    """Time and efficiency of a step under strong and weak scaling; where the network takes over."""
    shares = [1 << bit for bit in range(11)]
    controls = [
        control("ranks", "Ranks", RANKS, 256),
        control("sequences", f"Sequences per rank at {BEGIN} ranks", shares, 16, str),
        gpus(),
        card(H100.network),
    ]
    known = {name: gpu._asdict() for name, gpu in ACCELERATORS.items()}
    data = {"begin": BEGIN, "length": LENGTH, "ranks": RANKS, "gpus": known}
    title = f"A step of the small job on more and more ranks, in sequences of {LENGTH} tokens"
    return Slider("scaling", title, controls, data | {"model": SHAPES["small"], "each": own()})
