"""GPUs in a grid: replicas of a model, each split by width (tensor) and by depth (pipeline).

State, bytes and seconds are those of `minidist.plan` without latency and without attention's own
operations. Two more differences: replicas in several nodes talk at the rate of a node's network
cards, where the planner adds what they send inside; and a stage may have a fraction of a block,
where the planner counts the whole ones of the first rank.
"""

from typing import NamedTuple

from course.widgets.memory import STAGES, bytes_each, count_text
from course.widgets.page import Control, Slider, choice, control, stops
from course.widgets.peak import shape
from minidist.memory.state import AUTOCAST, StateBytes, share, state
from minidist.planner.hardware import H100

LENGTH = 8192  # tokens of a sequence
NODE = 8  # GPUs that NVLink joins
SIZES = sorted({0, int(405e9), *map(int, stops(8, 13, (1, 2, 3.2, 5, 8)))})


class Grid(NamedTuple):
    """What a GPU holds, and what it sends in a step and for how long."""

    replicas: int
    micro: float  #: sequences of a replica in a step, each a micro-batch
    held: StateBytes
    sent: dict[str, float]  #: bytes, by "data", "tensor" and "pipeline"
    seconds: dict[str, float]  #: of these, of "compute", and of the "bubble"

    @property
    def step(self) -> float:
        """Seconds of compute and of what it does not hide: bubble, tensor traffic, late data."""
        compute, bubble, late, tensor, _ = self.seconds.values()
        return compute + bubble + tensor + max(0.0, late - 2 / 3 * compute)


def grid(
    parameters: int,
    gpus: int,
    tensor: int,
    pipeline: int,
    sequences: int,
    stage: int,
    chunks: int = 1,
) -> Grid:
    """Predict a step of a GPT on H100s under autocast with Adam, one sequence in a micro-batch.

    Nodes of eight are filled by tensor parallelism first and by replicas then, which share the
    node's network cards. `stage`: of ZeRO, between the replicas; `chunks`: of blocks, interleaved,
    that each GPU of a pipeline has.
    """
    blocks, width = shape(parameters)
    replicas = gpus // (tensor * pipeline)
    own = state(-(-parameters // (tensor * pipeline)), AUTOCAST)
    micro = sequences / replicas
    tokens = micro * LENGTH
    sent = {
        "data": (own.weights + own.gradients)
        * (replicas - 1)
        / replicas,  # 2 + 2 + 4 bytes if sharded
        "tensor": 16 * tokens * width * blocks / pipeline * (tensor - 1) / tensor,
        "pipeline": 4 * chunks * tokens * width / tensor if pipeline > 1 else 0.0,
    }
    beside = min(replicas, max(1, NODE // tensor))  # replicas in a node
    rates = {
        "data": beside * H100.network if replicas > beside else H100.nvlink,
        "tensor": H100.network if tensor > NODE else H100.nvlink,
        "pipeline": H100.network,
    }
    compute = 6 * parameters * sequences * LENGTH / gpus / H100.rate(max(1, round(width)))
    takes = {name: sent[name] / rate for name, rate in rates.items()}
    bubble = (compute + takes["tensor"]) * (pipeline - 1) / micro / chunks
    seconds = {"compute": compute, "bubble": bubble, **takes}
    return Grid(replicas, micro, share(own, replicas, stage), sent, seconds)


def grid_slider() -> Slider:
    """What a GPU of a grid holds, and what each dimension of the grid sends in a step."""

    def powers(name: str, label: str, most: int, start: int) -> Control:
        return control(name, label, [1 << bit for bit in range(most.bit_length())], start)

    controls = [
        control("parameters", "Parameters", SIZES, int(405e9), count_text),
        powers("gpus", "GPUs", 65_536, 16_384),
        powers("tensor", "Tensor", 64, 8),
        powers("pipeline", "Pipeline", 128, 16),
        powers("chunks", "Stages per GPU", 8, 8),
        powers("sequences", "Sequences in a batch", 65_536, 2048),
        choice("stage", "Between replicas", STAGES, "ZeRO-2"),
    ]
    shapes = {size: shape(size) for size in SIZES}
    gpu = {"nvlink": H100.nvlink, "network": H100.network, "node": NODE, "memory": H100.memory}
    data = {
        "each": next(iter(bytes_each().values())),  # under autocast
        "stages": STAGES,
        "shapes": shapes,
        "flops": {size: H100.rate(max(1, round(width))) for size, (_, width) in shapes.items()},
        "length": LENGTH,
        "gpu": gpu,
    }
    title = "One of many H100s: what it holds, and what it sends in a step"
    return Slider("grid", title, controls, data)
