"""A backward pass whose gradients travel during it or after it, in buckets or one by one."""

from course.timing.backward import WAYS
from course.widgets.memory import own
from course.widgets.page import Control, Slider, card, control
from minidist.planner.hardware import H100
from minidist.planner.jobs import SHAPES

CAPS = sorted({25.0, *(2.0**power for power in range(-3, 11))})  # MiB
GPUS = [8 << bit for bit in range(10)]


def overlap_slider() -> Slider:
    """Four ways of DDP as lanes over time; what of the communication backward does not hide."""
    batches = [1 << exponent for exponent in range(9, 18)]
    texts = [f"{each:.0f} MiB" if each >= 1 else f"{1024 * each:.0f} KiB" for each in CAPS]
    controls = [
        Control("cap", "Bucket", CAPS, texts, 25.0),
        control("tokens", "Tokens per GPU", batches, 4096),
        control("ranks", "GPUs", GPUS, 16),
        card(H100.network),
    ]
    data = {"names": WAYS, "model": SHAPES["small"], "each": own(), "gpu": H100._asdict()}
    return Slider("overlap", "Backward of the small job, four ways", controls, data)
