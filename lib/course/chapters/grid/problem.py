"""The worked problems of the chapter on grids: rules and searches, with our jobs on our H100s."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from minidist.formulas import grids, rules
from minidist.formulas.compute import rate
from minidist.formulas.inputs import Grid, Question
from minidist.formulas.memory import memory
from minidist.memory.state import AUTOCAST, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, sized
from minidist.planner.planner import ROOM
from minidist.planner.search import Search
from minidist.planner.sizes import Sizes

GPUS, SEQUENCES = 16_384, 2048  # of the large job
CLUSTERS = [16, 64, 256, 1024, 4096, 16_384]
EACH = SEQUENCES * LARGE.tokens / GPUS  # tokens per GPU of the large job
RATE, NODE = rate(H100, LARGE.width), H100.per_node * H100.network  # of its matrices, of a node
TOKENS = [512, 1024, 2048, 4096, 8192]  # per GPU
FEW_GPUS, BATCHES = 32, (32, 16, 8)  # of the medium job, in sequences
SMALL_WAYS = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (1, 8)]  # C and T
HIDDEN, WIDTH, SPREAD = 2048, 7168, 64  # a layer of experts of DeepSeek-V3


class Best(NamedTuple):
    """The fastest grid, its seconds, and the bytes of a GPU."""

    grid: Grid
    seconds: float
    peak: float


def question(job: Sizes, ranks: int, samples: int, **how: Any) -> Question:
    """What a search is about, on H100s under autocast with AdamW."""
    each = bytes_each(AUTOCAST, "adam")
    return Question(job, H100, each, ranks, samples, ROOM * H100.memory, **how)


@cache
def fastest(job: str, ranks: int, samples: int, contexts: int = 16) -> Best:
    """The fastest grid of a job that fits, with sequences on at most so many ranks."""
    asked = question(sized(job), ranks, samples, contexts=contexts)
    found = grids.search(asked, 1)["best"][0]
    return Best(found["grid"], found["forecast"]["overlapped"], found["forecast"]["peak"])


def regimes(job: str = "medium") -> list[list[Grid]]:
    """The fastest grid for each count of tokens per GPU, and of GPUs."""
    return [
        [fastest(job, ranks, ranks * tokens // sized(job).tokens).grid for ranks in CLUSTERS]
        for tokens in TOKENS
    ]


@cache
def small_grids(samples: int) -> dict[tuple[int, int], float]:
    """(C, T) → seconds of a step of the medium job on a few GPUs, in grids without a pipeline."""
    best = grids.search(question(MEDIUM, FEW_GPUS, samples), 100)["best"]
    return {
        (each["grid"].context, each["grid"].tensor): each["forecast"]["overlapped"]
        for each in reversed(best)  # the fastest last
        if each["grid"].pipeline == 1
    }


def small() -> list[list[Any]]:
    """A row for each way to split the medium job: seconds of a step, by sequences per step."""
    rows = []
    for context, tensor in SMALL_WAYS:
        replicas = FEW_GPUS // context // tensor
        times = [small_grids(samples).get((context, tensor)) for samples in BATCHES]
        cells = ["–" if each is None else f"{each:.2f}" for each in times]
        rows.append([f"{replicas} × {context} × {tensor}", *cells])
    return rows


def small_numbers() -> dict[str, float]:
    """What the page says of the medium job on a few GPUs."""
    full = small_grids(BATCHES[0])
    return {
        "small_tensor": full[1, 2] / full[1, 1] - 1,
        "medium_2": sum(rules.tensor_loss(MEDIUM, H100, 2)),
    }


class Bill(NamedTuple):
    """Seconds of a step by hand, each price from its rule."""

    compute: float
    tensor: float
    context: float
    bubble: float
    borders: float

    @property
    def total(self) -> float:
        return sum(self)


def bill(grid: Grid) -> Bill:
    """A step of the large job in a grid, by the chapter's rules."""
    unsplit = 3 * LARGE.units * EACH * rules.layer_seconds(LARGE, H100)
    tensor = unsplit * sum(rules.tensor_loss(LARGE, H100, grid.tensor))
    context = unsplit * rules.context_loss(LARGE, H100, grid.context)
    waits = _bubble(grid) / EACH * (unsplit + tensor + context)
    ways = grid.pipeline, grid.tensor, grid.context, grid.interleaved
    borders = rules.border_tokens(LARGE, H100, *ways) / EACH * unsplit
    return Bill(unsplit, tensor, context, waits, borders)


def bills(found: Search) -> list[list[Any]]:
    """The best grid's step, by hand and as the search has it."""
    best = found.best[0]
    own, spent = bill(best.grid), best.spent
    attends = f"{rules.attention_share(LARGE, H100):.0%}"
    rest = spent["data"] + spent["update"]
    shown = {
        f"72 D² operations per token and layer, and attention's {attends}": (own.compute, None),
        "shorter pieces of attention": (own.context, None),
        "a tensor group's messages and narrow matrices": (own.tensor, None),
        "all of these": (
            own.compute + own.tensor + own.context,
            best.seconds - spent["bubble"] - spent["borders"] - rest,
        ),
        "the bubble": (own.bubble, spent["bubble"]),
        "messages between stages": (own.borders, spent["borders"]),
        "exchanges between replicas, update": (None, rest),
        "a step": (own.total, best.seconds),
    }
    return [
        [name, *("" if each is None else round(each, 2) for each in both)]
        for name, both in shown.items()
    ]


def leaders(found: Search) -> list[list[Any]]:
    """A row for each of the fastest grids."""
    rows = []
    for each in found.best:
        ways, peak = each.grid, round(each.forecast.peak / 1e9)
        split = f"{ways.data} × {ways.context} × {ways.tensor} × {ways.pipeline}"
        speed = [round(each.seconds, 2), f"{each.mfu:.0%}", peak]
        rows.append([split, ways.interleaved, *speed, each.binds])
    return rows


BORDERS: list[Callable[[int], float]] = [  # rules of the medium job: tokens per GPU, by GPUs
    lambda ranks: MEDIUM.tokens,
    lambda ranks: grids.PIECE,
    lambda ranks: rules.pipeline_pays_below(MEDIUM, H100, ranks, 2, 2, 2),
]


def numbers(found: Search) -> dict[str, Any]:
    """What the page says in numbers; `found`: the search for the large job."""
    best, own = found.best[0], fastest("large", GPUS, SEQUENCES, 1)
    ways, room = best.grid, ROOM * H100.memory
    by_hand = bill(ways)
    computes = by_hand.compute + by_hand.tensor + by_hand.context
    return {
        "tried": found.tried,
        "gain": own.seconds / best.seconds - 1,
        "bubble_own": _bubble(own.grid) / EACH,
        "bubble_best": _bubble(ways) / EACH,
        "bubble_tokens": _bubble(ways),
        "border_tokens": by_hand.borders / computes * EACH,
        "ex_strong": 4 * _bubble(own.grid) / EACH,
        "medium_10": rules.widest_tensor(MEDIUM, H100, 0.1),
        "large_10": rules.widest_tensor(LARGE, H100, 0.1),
        "keeps": rules.split_to_keep(LARGE, GPUS, room / 2),
        "least_piece": grids.PIECE,
        "narrower": _activations(ways._replace(tensor=4, data=2 * ways.data)) / 1e9,
        "wider": _activations(ways) / 1e9,
        "missing": 1 - by_hand.total / best.seconds,
        **{f"bill_{name}": seconds for name, seconds in by_hand._asdict().items()},
    }


def _activations(grid: Grid) -> float:
    """Bytes of activations on a rank of a grid, of the large job."""
    step = grids.step_of(question(LARGE, GPUS, SEQUENCES), grid)
    return memory(step, grid.strategy)["activations"]


def _bubble(grid: Grid) -> float:
    """Tokens per GPU that a grid's bubble is worth, of the large job."""
    return rules.bubble_tokens(LARGE, grid.pipeline, grid.tensor, grid.context, grid.interleaved)


def example() -> dict[str, float]:
    """What is given for the large job on H100s, and what the first rules make of it."""
    lost = {ranks: rules.tensor_loss(LARGE, H100, ranks) for ranks in (2, 4, 8, 16)}
    hides = 1.5 * RATE / NODE
    return {
        "rate": RATE / 1e12,
        "half": H100.half_width,
        "share": rules.attention_share(LARGE, H100),
        "each": EACH,
        **{f"large_{ranks}": sum(both) for ranks, both in lost.items()},
        "hides": hides,
        "hides_piped": hides / 16,
        "hides_many": rules.hidden_from(LARGE, H100, GPUS, strategy="hsdp"),
        "piece_hides": rules.hidden_piece(LARGE, H100),
        "context_2": rules.context_loss(LARGE, H100, 2),
        "shortest": rules.shortest_piece(LARGE, H100),
    }


def expert_numbers() -> dict[str, float]:
    """What the page says of experts such as DeepSeek-V3's."""
    return {
        "near": rules.expert_share(H100, WIDTH, HIDDEN, H100.per_node),
        "far": rules.expert_share(H100, WIDTH, HIDDEN, SPREAD),
        "expert_rate": rate(H100, WIDTH) / 1e12,
    }
