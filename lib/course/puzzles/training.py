"""The puzzles about a training step: buckets, FSDP's units, a pipeline."""

from typing import Any

from course.puzzles.buckets import send
from course.puzzles.tasks import LINKS, MIB
from minidist.schedule.lanes import Lanes

# (layer, when backward has its gradient in ms, MiB), in the order in which they were defined.
LAYERS = (
    ("embedding", 10, 24),
    ("head", 2, 24),
    *((f"block {number}", 9 - number, 12) for number in range(6)),
)
RANKS = 64


def network() -> dict[str, float]:
    """Times of a ring over 64 ranks with a network card each: in ms, and in ms per MiB."""
    (alpha, beta), sends = LINKS["400 Gb/s InfiniBand"], 2 * (RANKS - 1)
    return {"alpha": 1e3 * sends * alpha, "beta": 1e3 * sends / RANKS * beta * MIB}


def arrival(buckets: list[list[str]]) -> float:
    """The time at which the last bucket has arrived, in ms."""
    layers = {name: (ready, size) for name, ready, size in LAYERS}
    lanes = Lanes()
    return [send(lanes, bucket, layers, network()) for bucket in buckets][-1]


def buckets_task() -> dict[str, Any]:
    """Gradients of eight layers; what DDP would do first stands beside."""
    names = [name for name, _, _ in LAYERS]
    ready = [name for _, name in sorted((ready, name) for name, ready, _ in LAYERS)]
    best = [ready[:2], ready[2:5], ready[5:]]
    return {
        "judge": "buckets",
        "function": "buckets",
        "layers": [*map(list, LAYERS)],
        **network(),
        "size": "64 ranks, a ring over network cards of 400 Gb/s",
        "marks": [
            {"says": "every gradient travels once"},
            {"says": "done within 14 ms", "par": 14},
            {"says": "done as early as possible", "par": arrival(best)},
        ],
        "beside": [
            ["all in one", arrival([names])],
            ["each alone, the last defined first", arrival([[name] for name in reversed(names)])],
        ],
    }


UNITS, PLACES = 4, 2
TAKES = {"gather": 2, "forward": 3, "backward": 6, "reduce": 4}  # ms


def sharded_task() -> dict[str, Any]:
    """A step of four units, of which two fit into memory unsharded."""
    compute = UNITS * (TAKES["forward"] + TAKES["backward"])
    least = TAKES["gather"] + compute + TAKES["reduce"]
    return {
        "judge": "sharded",
        "function": "step",
        "units": UNITS,
        "limit": PLACES,
        "takes": TAKES,
        "size": "gather 2 ms, forward 3, backward 6, reduce 4",
        "marks": [
            {"says": "right, with two units in memory"},
            {"says": "a step within 50 ms", "par": 50},
            {"says": "nothing exposed but the first gather and the last reduce", "par": least},
        ],
        "beside": [["compute alone", compute]],
    }


STAGES, BATCHES, HELD = 4, 8, 4


def pipeline_task() -> dict[str, Any]:
    """Four stages and eight micro-batches, of which a stage can hold four."""
    takes = {"forward": 1, "backward": 2}
    both = sum(takes.values())
    return {
        "judge": "pipeline",
        "function": "order",
        "stages": STAGES,
        "batches": BATCHES,
        "limit": HELD,
        "takes": takes,
        "size": "forward 1 ms, backward 2",
        "marks": [
            {"says": "right, with at most four micro-batches held"},
            {"says": "a step within 42 ms", "par": 2 * (BATCHES // 2 + STAGES - 1) * both},
            {"says": "no bubble but at the ends", "par": (BATCHES + STAGES - 1) * both},
        ],
        "beside": [["one micro-batch after the other", BATCHES * STAGES * both]],
    }


TASKS = {
    "buckets": buckets_task(),
    "fsdp": sharded_task(),
    "pipeline": pipeline_task(),
}
