"""State of training for each rank, over the size of the model, the ranks and the dtypes."""

from dataclasses import asdict

from course.widgets.page import Slider, choice, control, rank_stops, stops
from minidist.memory.state import AUTOCAST, FP32, MIXED, DtypePolicy, state
from minidist.planner.hardware import H100
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


def state_slider(parameters: float = 8e9, alone: bool = False) -> Slider:
    """Bars of parameters, gradients and optimizer state per rank, without sharding and with ZeRO.

    `parameters`: where the slider starts; `alone`: one GPU, and no talk of ranks and stages.
    """
    sizes = [0, *map(int, stops(6, 13, (1, 1.3, 2, 3.2, 5, 8)))]
    controls = [
        control("parameters", "Parameters", sizes, int(parameters), count_text),
        *([] if alone else [control("ranks", "Ranks", rank_stops(), 8)]),
        choice("policy", "Dtypes and optimizer", POLICIES, AUTOCAST_ADAM),
    ]
    title = "What one GPU would have to hold" if alone else "What each rank holds between steps"
    stages = ("GPU",) if alone else STAGES
    data = {"each": bytes_each(), "stages": stages, "limit": LIMIT}
    return Slider("state", title, controls, data)


def count_text(parameters: int) -> str:
    """7 billion, for instance."""
    for factor, word in NUMBERS:
        if parameters >= factor:
            return f"{parameters / factor:g} {word}"
    return f"{parameters}"


def bytes_each() -> dict[str, dict[str, int]]:
    """Policy → bytes of one parameter: of its state, in forward, and for its update."""
    return {
        name: asdict(state(1, dtypes, optimizer))
        | {"compute": dtypes.computes.itemsize, "update": update_bytes(dtypes, optimizer)}
        for name, (dtypes, optimizer) in POLICIES.items()
    }


def update_bytes(policy: DtypePolicy, optimizer: str) -> int:
    """What AdamW needs of each parameter while it updates all of them at a time."""
    return policy.moments.itemsize if optimizer == "adam" else 0
