"""The calculator: a model, GPUs and a batch in; what fits, what binds and what to run out."""

from course.widgets.memory import AUTOCAST_ADAM, POLICIES, bytes_each
from course.widgets.page import Control, Slider, choice, control, rank_stops
from minidist.memory.state import Strategy
from minidist.planner.hardware import ACCELERATORS, H100
from minidist.planner.planner import CLOSE, ROOM
from minidist.planner.sizes import Sizes
from minidist.planner.step import SENDS

Shape = tuple[int, int, int, int, int, int]  # layers, width, hidden, heads, of keys, vocabulary
NAMES = {
    "single": "one GPU",
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP",
    "hsdp": "hybrid",
}
MODELS: dict[str, Shape] = {
    "Llama 3.2 1B": (16, 2048, 8192, 32, 8, 128_256),
    "Llama 3.2 3B": (28, 3072, 8192, 24, 8, 128_256),
    "Llama 3.1 8B": (32, 4096, 14_336, 32, 8, 128_256),
    "Llama 3.1 70B": (80, 8192, 28_672, 64, 8, 128_256),
    "Llama 3.1 405B": (126, 16_384, 53_248, 128, 8, 128_256),
}
CARDS = {gbits / 8 * 1e9: f"{gbits} Gb/s per GPU" for gbits in (10, 50, 100, 200, 400, 800)}
SHARES = {"none": 0.0, "every second block": 0.5, "every block": 1.0}


def sizes(model: str, context: int) -> Sizes:
    """Of one of `MODELS`, with sequences of so many tokens; small ones tie head and embedding."""
    return Sizes.llama(*MODELS[model], context, tied="3.2" in model)


def plan_slider() -> Slider:
    """What a GPU holds under each strategy, what the step takes, and what to run."""
    batches, lengths = [1 << bit for bit in range(9)], [1 << bit for bit in range(9, 18)]
    shown = ["what to run", *NAMES.values()]
    controls = [
        control("model", "Model", [*MODELS], "Llama 3.2 3B", str),
        control("ranks", "GPUs", rank_stops(4096), 8),
        control("batch", "Sequences per GPU", batches, 1, str),
        control("context", "Tokens of a sequence", lengths, 8192),
        choice("gpu", "GPU", ACCELERATORS, "H100"),
        Control("card", "Network", [*CARDS], [*CARDS.values()], H100.network, choose=True),
        choice("policy", "Dtypes and optimizer", POLICIES, AUTOCAST_ADAM),
        choice("checkpoints", "Checkpoints", SHARES, "none"),
        Control("shown", "Times of", ["", *NAMES], shown, "", choose=True),
    ]
    data = {
        "names": NAMES,
        "sizes": {name: {n: sizes(name, n)._asdict() for n in lengths} for name in MODELS},
        "strategies": {each: {"stage": each.stage, "sends": SENDS[each]} for each in Strategy},
        "close": CLOSE,
        "room": ROOM,
        "shares": SHARES,
        "each": bytes_each(),
        "gpus": {name: gpu._asdict() for name, gpu in ACCELERATORS.items()},
    }
    return Slider("plan", "My model, my GPUs: what do I run?", controls, data)
