"""Sliders that ask the library's formulas: what each of them varies, and the data that it hands on.

What they draw and say is computed in the page: see `compiled`, and `static/bars.js` and
`static/curves.js`.
"""

from collections.abc import Sequence

from course.interactive.page import Control, Slider, choice, control, scaled, seconds_text, stops
from course.timing.backward import WAYS
from minidist.memory.state import AUTOCAST, FP32, MIXED, bytes_each
from minidist.planner.hardware import ACCELERATORS, ASSUMED, ETHERNET_100, GIB, H100, PCIE_5
from minidist.planner.jobs import LARGE, MEDIUM, SEQUENCE, SHAPES, SMALL, sized
from minidist.planner.planner import CLOSE, ROOM
from minidist.schedule.algorithms import ALL_REDUCE
from minidist.schedule.cost import Link, price, switch

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
AUTOCAST_ADAM = "autocast, Adam"
POLICIES = {
    AUTOCAST_ADAM: (AUTOCAST, "adam"),
    "bf16 with fp32 master, Adam": (MIXED, "adam"),
    "fp32, Adam": (FP32, "adam"),
    "fp32, SGD with momentum": (FP32, "momentum"),
    "fp32, plain SGD": (FP32, "sgd"),
}
EACH = {name: bytes_each(*how)._asdict() for name, how in POLICIES.items()}  # bytes per parameter
SHARES = {"none": 0.0, "every second block": 0.5, "every block": 1.0}  # blocks with a checkpoint
GPUS = {name: gpu._asdict() for name, gpu in ACCELERATORS.items()}
SMALL_JOB = {"model": SHAPES["small"], "each": EACH[AUTOCAST_ADAM]}
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
SHOWN = {
    "ring": "ring",
    "recursive_doubling": "recursive doubling",
    "halving_doubling": "halving-doubling",
    "tree": "binomial tree",
}
KNOWN = {
    ETHERNET_100: "100 GbE",
    H100.network: "400 Gb/s InfiniBand",
    PCIE_5: "PCIe 5 x16",
    H100.node_network: "a node of H100s",
    H100.nvlink: "NVLink of an H100",
}
MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86_400.0, 365 * 86_400.0

# Controls of several sliders. Where no run was at hand, a GPU's rate is marked as assumed; a card
# is of one GPU, in bytes per second.
POLICY = choice("policy", "Dtypes and optimizer", POLICIES, AUTOCAST_ADAM)
CHECKPOINTS = choice("checkpoints", "Checkpoints", SHARES, "none")
RATES = [f"{n}, rate assumed" if gpu.name in ASSUMED else n for n, gpu in ACCELERATORS.items()]
GPU = Control("gpu", "GPU", [*ACCELERATORS], RATES, "H100", choose=True)
CARDS = {gbits / 8 * 1e9: f"{gbits} Gb/s per GPU" for gbits in (10, 50, 100, 200, 400, 800)}
CARD = Control("card", "Network card", [*CARDS], [*CARDS.values()], H100.network, choose=True)


# ---- what one GPU holds ----


def state_slider(parameters: float = MEDIUM.parameters, alone: bool = False) -> Slider:
    """Bars of parameters, gradients and optimizer state per rank, without sharding and with ZeRO.

    `parameters`: where the slider starts, or next to it; `alone`: one GPU, no ranks and stages.
    """
    jobs = [SMALL.parameters, MEDIUM.parameters, LARGE.parameters]
    sizes = sorted({0, *jobs, *map(int, stops(6, 13, (1, 1.3, 2, 5)))})
    start = min(sizes, key=lambda size: abs(size - parameters))
    controls = [
        control("parameters", "Parameters", sizes, start, count_text),
        *([] if alone else [control("ranks", "Ranks", rank_stops(), 8)]),
        POLICY,
    ]
    title = "What one GPU would have to hold" if alone else "What each rank holds between steps"
    stages = ("GPU",) if alone else STAGES
    data = {"each": EACH, "stages": stages, "limit": ROOM * H100.memory}
    return Slider("state", title, controls, data)


def peak_slider() -> Slider:
    """Bars of state and activations at both ends of backward, against the memory of a GPU."""
    memories = {24 * GIB: "24 GiB"} | {
        gpu.memory: f"{gpu.name.split()[0]}, {gpu.memory / GIB:.0f} GiB"
        for gpu in ACCELERATORS.values()
        if gpu.name not in ASSUMED  # of an H800 there is as much as of an H100
    }
    controls = [
        models("small"),
        control("batch", "Sequences", powers(0, 10), 1),
        control("tokens", "Tokens of a sequence", powers(7, 20), 2048),
        POLICY,
        CHECKPOINTS,
        Control("memory", "GPU", [*memories], [*memories.values()], H100.memory, choose=True),
    ]
    title = "What one GPU holds when backward begins, and in the update"
    data = {"room": ROOM, "each": EACH, "shares": SHARES, "gpu": H100._asdict()}
    return Slider("peak", title, controls, data)


def grid_slider() -> Slider:
    """Memory of one GPU of a grid, and what each dimension of the grid sends in a step.

    Replicas of a model, each split by width (tensor) and by depth (pipeline).
    """
    between = ("ddp", "zero1", "zero2", "fsdp_kept", "fsdp")  # the last two in no pipeline
    names = [NAMES[name] for name in between]
    controls = [
        models("large"),
        control("gpus", "GPUs", powers(0, 16), 16_384),
        control("tensor", "Tensor", powers(0, 6), 8),
        control("pipeline", "Pipeline", powers(0, 7), 16),
        control("interleaved", "Stages per GPU", powers(0, 3), 8),
        control("sequences", "Sequences in a batch", powers(0, 16), 2048),
        Control("strategy", "Between replicas", between, names, "zero2", choose=True),
        CHECKPOINTS,
    ]
    data = {"each": SMALL_JOB["each"], "length": SEQUENCE, "gpu": H100._asdict(), "room": ROOM}
    title = "One of many H100s: what it holds, and what it sends in a step"
    return Slider("grid", title, controls, data | {"shares": SHARES, "names": NAMES})


def plan_slider() -> Slider:
    """The calculator: what a GPU holds under each strategy, what a step takes, and what to run."""
    shown = ["what to run", *NAMES.values()]
    controls = [
        Control("model", "Model", [*MODELS.values()], [*MODELS], SHAPES["small"]),
        control("ranks", "GPUs", rank_stops(4096), 8),
        control("batch", "Sequences per GPU", powers(0, 8), 1, str),
        control("tokens", "Tokens of a sequence", powers(9, 17), 8192),
        GPU,
        CARD,
        POLICY,
        CHECKPOINTS,
        Control("shown", "Times of", ["", *NAMES], shown, "", choose=True),
    ]
    data = {"names": NAMES, "close": CLOSE, "room": ROOM, "shares": SHARES, "each": EACH}
    return Slider("plan", "My model, my GPUs: what do I run?", controls, data | {"gpus": GPUS})


# ---- what takes time ----


def curves_slider() -> Slider:
    """Curves of four all-reduces on a switch, as schedules, and where the best one changes."""
    ranks, alphas = rank_stops(4096), [0.0, *stops(-7, -3, (1, 2, 5))]
    rates = sorted({0.0, *stops(8, 12, (1, 2, 5)), *KNOWN})
    controls = [
        control("ranks", "Ranks", ranks, 64),
        control("alpha", "Latency α", alphas, 10e-6, seconds_text),
        control("bandwidth", "Bandwidth 1/β", rates, 50e9, rate_text),
    ]
    data = {"names": SHOWN, "mark": 96 * 2**20, "counts": {n: counts(n) for n in ranks}}
    return Slider("curves", "What an all-reduce takes", controls, data)


def counts(ranks: int) -> dict[str, list[float]]:
    """Algorithm → messages that follow each other, and how many tensors they carry in all."""
    links = switch(Link(1, 0)), switch(Link(0, 1))
    return {name: [price(ALL_REDUCE[name](ranks), link)(1) for link in links] for name in SHOWN}


def overlap_slider() -> Slider:
    """Four ways of DDP as lanes over time; what of the communication backward does not hide."""
    caps = sorted({25.0, *(2.0**power for power in range(-3, 11))})  # MiB
    texts = [f"{each:.0f} MiB" if each >= 1 else f"{1024 * each:.0f} KiB" for each in caps]
    controls = [
        Control("cap", "Bucket", caps, texts, 25.0),
        control("tokens", "Tokens per GPU", powers(9, 17), 4096),
        control("ranks", "GPUs", powers(3, 12), 16),
        CARD,
    ]
    data = {"names": WAYS, "gpu": H100._asdict()} | SMALL_JOB
    return Slider("overlap", "Backward of the small job, four ways", controls, data)


def scaling_slider() -> Slider:
    """Time and efficiency of a step under strong and weak scaling; where the network takes over."""
    begin, length = 64, 256  # ranks with `sequences` each in both; tokens of a sequence
    controls = [
        control("ranks", "Ranks", powers(0, 12), 256),
        control("sequences", f"Sequences per rank at {begin} ranks", powers(0, 10), 16, str),
        GPU,
        CARD,
    ]
    data = {"begin": begin, "length": length, "ranks": powers(0, 12), "gpus": GPUS} | SMALL_JOB
    title = f"A step of the small job on more and more ranks, in sequences of {length} tokens"
    return Slider("scaling", title, controls, data)


def checkpoint_slider() -> Slider:
    """The share of time lost over the interval between checkpoints, and where it is least.

    Something fails now and then: Daly's model (2006), in `in_page`.
    """
    each = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
    saves = [*each[:-1], 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0]
    restarts = [10.0, 30.0, *(MINUTE * minutes for minutes in (1, 2, 5, 10, 20, 30, 60))]
    controls = [
        control("gpus", "GPUs", [n for n in rank_stops() if n >= 8], 4096),
        control("years", "A GPU fails once in", each, 5.0, "{:g} years".format),
        control("save", "A save stops training for", saves, 30.0, time_text),
        control("restart", "A restart takes", restarts, 10 * MINUTE, time_text),
    ]
    title = "Time lost to failures and to checkpoints"
    return Slider("checkpoints", title, controls, {"year": YEAR})


# ---- what they run over, and how it reads ----


def powers(low: int, high: int) -> list[int]:
    """Powers of two, from 2^low to 2^high."""
    return [1 << bit for bit in range(low, high + 1)]


def rank_stops(most: int = 65_536) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: powers of two, and half way between them."""
    twos = powers(0, most.bit_length() - 1)
    return sorted({*twos, *(3 * power // 2 for power in twos if 1 < power < most)})


def models(start: str) -> Control:
    """A slider over models: the jobs in their shapes, and GPTs of other sizes."""
    jobs: dict[int, Sequence[object]] = {sized(name).parameters: SHAPES[name] for name in SHAPES}
    found = jobs | {count: [count] for count in (0, *map(int, stops(8, 13, (1, 2, 5))))}
    texts = [f"{count_text(count)}{', Llama' * (count in jobs)}" for count in sorted(found)]
    values = [found[count] for count in sorted(found)]
    return Control("model", "Parameters", values, texts, SHAPES[start])


def count_text(parameters: int) -> str:
    """7 billion, for instance, with three digits at most."""
    words = [(1e12, "trillion"), (1e9, "billion"), (1e6, "million")]
    return scaled(parameters, "", words) if parameters >= 1e6 else f"{parameters}"


def rate_text(rate: float) -> str:
    """50 GB/s, and what has that rate."""
    named = f" ({KNOWN[rate]})" if rate in KNOWN else ""
    return f"{rate / 1e9:g} GB/s{named}"


def time_text(seconds: float) -> str:
    """12 min, with three digits at most; below a tenth of a second, 12.8 ms."""
    if seconds < 1:
        return f"{seconds:.3g} s" if seconds >= 0.1 else seconds_text(seconds)
    return scaled(seconds, "", [(DAY, "days"), (HOUR, "h"), (MINUTE, "min"), (1.0, "s")])
