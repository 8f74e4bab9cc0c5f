"""The calculator: a model, GPUs and a batch in; what fits, what binds and what to run out."""

from course.widgets.memory import POLICIES, bytes_each
from course.widgets.page import Control, Slider, rank_stops
from minidist.memory.state import Strategy
from minidist.planner.hardware import ACCELERATORS, ETHERNET_100, H100
from minidist.planner.planner import CLOSE
from minidist.planner.sizes import Sizes
from minidist.planner.step import SENDS

NAMES = {
    "single": "one GPU",
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP",
    "hsdp": "hybrid",
}
MODELS = {  # layers, width, vocabulary
    "125 million": (12, 768, 50_257),
    "350 million": (24, 1024, 50_257),
    "1.3 billion": (24, 2048, 50_257),
    "2.7 billion": (32, 2560, 50_257),
    "7 billion": (34, 4096, 32_000),
    "13 billion": (40, 5120, 32_000),
    "30 billion": (48, 7168, 32_000),
    "70 billion": (80, 8448, 128_000),
    "175 billion": (96, 12_288, 50_257),
    "405 billion": (126, 16_384, 128_000),
}
CARDS = {  # bytes a second of each GPU
    1.25e9: "10 Gb/s for each GPU",
    H100.network / 8: "400 Gb/s for each node",
    ETHERNET_100: "100 Gb/s for each GPU",
    25e9: "200 Gb/s for each GPU",
    H100.network: "400 Gb/s for each GPU",
    100e9: "800 Gb/s for each GPU",
}
CHECKPOINTS = ("none", "every block")


def plan_slider(
    model: str = "7 billion", ranks: int = 8, batch: int = 4, context: int = 2048
) -> Slider:
    """What a GPU holds under each strategy, what the step takes, and what to run.

    `model`: where its slider starts, one of `MODELS`; so do the others; `batch`: samples of a rank
    in a step, of `context` tokens each.
    """
    counts, batches = rank_stops(4096), [1 << bit for bit in range(9)]
    lengths, policies = [1 << bit for bit in range(9, 18)], list(POLICIES)
    controls = [
        Control("model", "Model", list(MODELS), list(MODELS), model),
        Control("ranks", "GPUs", counts, [f"{n:,}" for n in counts], ranks),
        Control("batch", "Samples on a GPU", batches, [f"{n}" for n in batches], batch),
        Control("context", "Tokens of a sample", lengths, [f"{n:,}" for n in lengths], context),
        Control("gpu", "GPU", list(ACCELERATORS), list(ACCELERATORS), "H100", choose=True),
        Control("card", "Network", list(CARDS), list(CARDS.values()), H100.network, choose=True),
        Control("policy", "Dtypes and optimizer", policies, policies, policies[0], choose=True),
        Control("checkpoints", "Checkpoints", CHECKPOINTS, CHECKPOINTS, "none", choose=True),
        Control(
            "shown", "Times of", ["", *NAMES], ["what to run", *NAMES.values()], "", choose=True
        ),
    ]
    return Slider(
        "plan",
        "My model, my GPUs: what do I run?",
        controls,
        {
            "names": NAMES,
            "sizes": {
                name: {n: Sizes.gpt(*each, n)._asdict() for n in lengths}
                for name, each in MODELS.items()
            },
            "strategies": {each: {"stage": each.stage, "sends": SENDS[each]} for each in Strategy},
            "close": CLOSE,
            "each": bytes_each(),
            "gpus": {name: gpu._asdict() for name, gpu in ACCELERATORS.items()},
        },
    )
