"""The worked problems of the chapter on grids: rules and searches, with our jobs on our H100s."""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from minidist.formulas import grids, models, rules
from minidist.formulas.compute import FEW, PIECE, rate
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
TOKENS = [512, 1024, 2048, 4096, 8192]  # per GPU
EXPERTS, ACTIVE, HIDDEN, WIDTH, SPREAD = 256, 8, 2048, 7168, 64  # a layer of DeepSeek-V3


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


def hides_from() -> list[list[Any]]:
    """Tokens per GPU from which the large job's gathers hide, over 512 GPUs, by tensor degree."""
    found = []
    for tensor in (1, 2, 4, 8, 16):
        count = rules.hidden_from(LARGE, H100, 512, tensor)
        sent, narrow = rules.tensor_loss(LARGE, H100, tensor)
        found.append([tensor, round(count), f"{sent:.0%}", f"{narrow:.0%}"])
    return found


def pieces() -> list[list[Any]]:
    """By job and sequence, the piece whose hops hide, what degrees lose, and the piece to halve."""
    rows = []
    for name, tokens in product(("medium", "large"), (8192, 32_768)):
        job = sized(name, tokens)
        lost = [f"{rules.context_loss(job, H100, degree):.0%}" for degree in (2, 4, 8)]
        ends = [round(rule(job, H100)) for rule in (rules.hidden_piece, rules.shortest_piece)]
        rows.append([f"{name}, {tokens:,}", ends[0], *lost, ends[1]])
    return rows


def leaders(found: Search) -> list[list[Any]]:
    """A row for each of the fastest grids."""
    rows = []
    for each in found.best:
        ways, peak = each.grid, round(each.forecast.peak / 1e9)
        stages = f"{ways.pipeline} × {ways.interleaved}"
        again = {"none": "", "selective": "part"}.get(ways.recompute, "all")
        speed = [again, f"{each.seconds:.2f}", f"{each.mfu:.0%}", peak]
        rows.append([ways.data, ways.context, ways.tensor, stages, *speed])
    return rows


def mixture(experts: int = EXPERTS, active: int = ACTIVE) -> Sizes:
    """A model whose layers have experts such as DeepSeek-V3's, and a Llama's attention."""
    shape = 61, WIDTH, HIDDEN, 56, 8, 129_280, 8192
    found = models.mixture(*shape, experts, active, HIDDEN)
    return Sizes(**found | {name: tuple(found[name]) for name in ("before", "block", "after")})


BORDERS: list[Callable[[int], float]] = [  # rules of the medium job: tokens per GPU, by GPUs
    lambda ranks: MEDIUM.tokens,
    lambda ranks: grids.PIECE,
    lambda ranks: rules.pipeline_pays_below(MEDIUM, H100, ranks, 2, 2, 2),
]


def numbers(found: Search) -> dict[str, float]:
    """What the page says in numbers; `found`: the search for the large job."""
    best, own = found.best[0], fastest("large", GPUS, SEQUENCES, 1)
    each = SEQUENCES * LARGE.tokens / GPUS
    return {
        "tried": found.tried,
        "priced": found.priced,
        "gain": own.seconds / best.seconds - 1,
        "each": each,
        "own_tokens": _bubble(own.grid),
        "bubble_own": _bubble(own.grid) / each,
        "bubble_best": _bubble(best.grid) / each,
        "ex_strong": 4 * _bubble(own.grid) / each,
        "half": H100.half_width,
        **{
            f"{name}_{round(100 * share)}": rules.widest_tensor(sized(name), H100, share)
            for name in ("medium", "large") for share in (0.1, 0.25)
        },
        "large_8": sum(rules.tensor_loss(LARGE, H100, 8)),
        "large_16": sum(rules.tensor_loss(LARGE, H100, 16)),
        "stages": rules.best_interleaving(MEDIUM, H100, 2, 2, 2),
        "pays_64": BORDERS[2](64),
        "pays_4096": BORDERS[2](4096),
        "keeps": rules.split_to_keep(LARGE, GPUS, ROOM * H100.memory / 2),
        "half_piece": PIECE,
        "least_piece": grids.PIECE,
        "large_4": sum(rules.tensor_loss(LARGE, H100, 4)),
        "narrower": _activations(best.grid._replace(tensor=4, data=2 * best.grid.data)) / 1e9,
    }  # fmt: skip


def _activations(grid: Grid) -> float:
    """Bytes of activations on a rank of a grid, of the large job."""
    step = grids.step_of(question(LARGE, GPUS, SEQUENCES), grid)
    return memory(step, grid.strategy)["activations"]


def _bubble(grid: Grid) -> float:
    """Tokens per GPU that a grid's bubble is worth, of the large job."""
    return rules.bubble_tokens(LARGE, grid.pipeline, grid.tensor, grid.context, grid.interleaved)


def example() -> dict[str, float]:
    """A layer of the large job on an H100, and what its first rules come to in numbers."""
    speed, network = rate(H100, LARGE.width), H100.per_node * H100.network
    return {
        "example_p": LARGE.largest_unit / 1e9,
        "example_rate": speed / 1e12,
        "example_w": 1e6 * rules.layer_seconds(LARGE, H100),
        "example_per_byte": speed / H100.nvlink,
        "example_plain": 2 / 9 * speed / H100.nvlink / LARGE.width,
        "example_sent": rules.tensor_loss(LARGE, H100, 2)[0],
        "example_hides": 1.5 * speed / network,
    }


def expert_numbers() -> dict[str, float]:
    """What the page says of experts such as DeepSeek-V3's."""
    return {
        "few": FEW,
        "slow_alone": rules.few_tokens_loss(4096, EXPERTS, ACTIVE, 1),
        "slow_spread": rules.few_tokens_loss(4096, EXPERTS, ACTIVE, SPREAD),
        "near": rules.expert_share(H100, WIDTH, HIDDEN, H100.per_node),
        "far": rules.expert_share(H100, WIDTH, HIDDEN, SPREAD),
        "needs_all": rules.hidden_from(mixture(), H100, 2048),
    }
