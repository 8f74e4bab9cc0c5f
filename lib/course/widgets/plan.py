"""The calculator: a model, GPUs and a batch in; what fits, what binds and what to run out."""

from course.widgets.memory import AUTOCAST_ADAM, POLICIES, each
from course.widgets.page import Control, Slider, card, choice, control, gpus, rank_stops
from course.widgets.peak import SHARES
from minidist.planner.hardware import ACCELERATORS, H100
from minidist.planner.jobs import SHAPES
from minidist.planner.planner import CLOSE, ROOM

NAMES = {
    "single": "one GPU",
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp_kept": "FSDP, weights kept",
    "fsdp": "FSDP",
    "hsdp": "hybrid",
}
MODELS = {  # as `Sizes.llama` takes them; small ones tie head and embedding
    "Llama 3.2 1B": (16, 2048, 8192, 32, 8, 128_256, True),
    "Llama 3.2 3B": SHAPES["small"],
    "Llama 3.1 8B": SHAPES["medium"],
    "Llama 3.1 70B": (80, 8192, 28_672, 64, 8, 128_256, False),
    "Llama 3.1 405B": SHAPES["large"],
}


def plan_slider() -> Slider:
    """What a GPU holds under each strategy, what the step takes, and what to run."""
    batches, lengths = [1 << bit for bit in range(9)], [1 << bit for bit in range(9, 18)]
    shown = ["what to run", *NAMES.values()]
    controls = [
        Control("model", "Model", [*MODELS.values()], [*MODELS], SHAPES["small"]),
        control("ranks", "GPUs", rank_stops(4096), 8),
        control("batch", "Sequences per GPU", batches, 1, str),
        control("tokens", "Tokens of a sequence", lengths, 8192),
        gpus(),
        card(H100.network),
        choice("policy", "Dtypes and optimizer", POLICIES, AUTOCAST_ADAM),
        choice("checkpoints", "Checkpoints", SHARES, "none"),
        Control("shown", "Times of", ["", *NAMES], shown, "", choose=True),
    ]
    data = {
        "names": NAMES,
        "close": CLOSE,
        "room": ROOM,
        "shares": SHARES,
        "each": each(),
        "gpus": {name: gpu._asdict() for name, gpu in ACCELERATORS.items()},
    }
    return Slider("plan", "My model, my GPUs: what do I run?", controls, data)
