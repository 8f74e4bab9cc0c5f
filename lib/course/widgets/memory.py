"""State of training for each rank, over the size of the model, the ranks and the dtypes."""

from typing import Any

from course.widgets.page import Slider, choice, control, rank_stops, stops
from minidist.memory.state import AUTOCAST, FP32, MIXED, DtypePolicy, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, SMALL
from minidist.planner.planner import ROOM

STAGES: tuple[str, ...] = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
LIMIT = ROOM * H100.memory  # bytes of an A100's or an H100's memory that training may take
NUMBERS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))
AUTOCAST_ADAM = "autocast, Adam"
POLICIES = {
    AUTOCAST_ADAM: (AUTOCAST, "adam"),
    "bf16 with fp32 master, Adam": (MIXED, "adam"),
    "fp32, Adam": (FP32, "adam"),
    "fp32, SGD with momentum": (FP32, "momentum"),
    "fp32, plain SGD": (FP32, "sgd"),
}
JOBS = [SMALL.parameters, MEDIUM.parameters, LARGE.parameters]


def state_slider(parameters: float = MEDIUM.parameters, alone: bool = False) -> Slider:
    """Bars of parameters, gradients and optimizer state per rank, without sharding and with ZeRO.

    `parameters`: where the slider starts, or next to it; `alone`: one GPU, no ranks and stages.
    """
    sizes = sorted({0, *JOBS, *map(int, stops(6, 13, (1, 1.3, 2, 5)))})
    start = min(sizes, key=lambda size: abs(size - parameters))
    controls = [
        control("parameters", "Parameters", sizes, start, count_text),
        *([] if alone else [control("ranks", "Ranks", rank_stops(), 8)]),
        choice("policy", "Dtypes and optimizer", POLICIES, AUTOCAST_ADAM),
    ]
    title = "What one GPU would have to hold" if alone else "What each rank holds between steps"
    stages = ("GPU",) if alone else STAGES
    return Slider("state", title, controls, {"each": each(), "stages": stages, "limit": LIMIT})


def count_text(parameters: int) -> str:
    """7 billion, for instance, with three digits at most."""
    for factor, word in NUMBERS:
        if parameters >= factor:
            return f"{parameters / factor:.3g} {word}"
    return f"{parameters}"


def each() -> dict[str, dict[str, Any]]:
    """Policy → bytes of one parameter, as formulas read them."""
    return {name: own(*how) for name, how in POLICIES.items()}


def own(policy: DtypePolicy = AUTOCAST, optimizer: str = "adam") -> dict[str, Any]:
    """Bytes of one parameter, as formulas read them."""
    return bytes_each(policy, optimizer)._asdict()
