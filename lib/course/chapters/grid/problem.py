"""The worked problems of the chapter on grids: rules and searches, with our jobs on our H100s."""

from functools import cache
from typing import Any, NamedTuple

from minidist.formulas import grids, models, rules
from minidist.formulas.inputs import Grid, Question
from minidist.memory.state import AUTOCAST, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, sized
from minidist.planner.planner import ROOM
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


def mixture(experts: int = EXPERTS, active: int = ACTIVE) -> Sizes:
    """A model whose layers have experts such as DeepSeek-V3's, and Llama's attention."""
    found = models.mixture(
        61, WIDTH, HIDDEN, 56, 8, 129_280, 8192, experts, active, HIDDEN
    )  # fmt: skip
    return Sizes(**found | {name: tuple(found[name]) for name in ("before", "block", "after")})


def losses() -> dict[str, float]:
    """What tensor degrees cost, and how wide a group may be, by job."""
    found = {}
    for name in ("small", "medium", "large"):
        for share in (0.1, 0.25):
            found[f"{name}_{round(100 * share)}"] = rules.widest_tensor(sized(name), H100, share)
    for ranks in (8, 16):
        found[f"large_at_{ranks}"] = sum(rules.tensor_loss(LARGE, H100, ranks))
        found[f"medium_at_{ranks}"] = sum(rules.tensor_loss(MEDIUM, H100, ranks))
    return found
