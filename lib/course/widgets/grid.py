"""GPUs in a grid: replicas of a model, each split by width (tensor) and by depth (pipeline)."""

from course.widgets.memory import own
from course.widgets.page import Control, Slider, choice, control
from course.widgets.peak import SHARES, sizes
from course.widgets.plan import NAMES
from minidist.planner.hardware import H100
from minidist.planner.jobs import SEQUENCE
from minidist.planner.planner import ROOM

BETWEEN = ("ddp", "zero1", "zero2", "fsdp_kept", "fsdp")  # replicas; the last two in no pipeline


def grid_slider() -> Slider:
    """What a GPU of a grid holds, and what each dimension of the grid sends in a step."""

    def powers(name: str, label: str, most: int, start: int) -> Control:
        return control(name, label, [1 << bit for bit in range(most.bit_length())], start)

    names = [NAMES[name] for name in BETWEEN]
    controls = [
        sizes("large"),
        powers("gpus", "GPUs", 65_536, 16_384),
        powers("tensor", "Tensor", 64, 8),
        powers("pipeline", "Pipeline", 128, 16),
        powers("interleaved", "Stages per GPU", 8, 8),
        powers("sequences", "Sequences in a batch", 65_536, 2048),
        Control("strategy", "Between replicas", BETWEEN, names, "zero2", choose=True),
        choice("checkpoints", "Checkpoints", SHARES, "none"),
    ]
    data = {"each": own(), "length": SEQUENCE, "gpu": H100._asdict(), "room": ROOM}
    title = "One of many H100s: what it holds, and what it sends in a step"
    return Slider("grid", title, controls, data | {"shares": SHARES, "names": NAMES})
