"""Options of a run: each field is a flag of `python -m minidist.train`."""

import logging
import math
from argparse import ArgumentTypeError
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minidist.memory.state import Strategy
from minidist.train.text import text

STRATEGIES = (*map(str, Strategy), "torch-ddp", "torch-fsdp")
PRECISIONS = ("float32", "bfloat16")
MODEL = ("width", "layers", "heads", "context")  # what makes a model another one
NUMBERS = ("batch", "lr", "seed", "clip", "precision")  # what changes a run's losses otherwise
LOG = logging.getLogger("minidist.train")


class TrainError(RuntimeError):
    """Ends a run with one sentence for its user."""


def flag(default: Any, what: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": what, **more})


def path(text: str) -> Path:
    if not text:
        raise ArgumentTypeError("expected a path, got ''")  # Path would make it the current folder
    return Path(text)


@dataclass(frozen=True)
class Options:
    """All but `checkpoint` and `every` decide what is computed; none but `strategy` needs a GPU."""

    strategy: str = flag("ddp", "how the ranks share the work", choices=STRATEGIES)
    width: int = flag(64, "features of a token, a multiple of the heads")
    layers: int = flag(2, "blocks of the GPT")
    heads: int = flag(4, "attention heads of a block")
    context: int = flag(64, "tokens of a row, the most that the model looks at")
    batch: int = flag(24, "rows of a step, of all ranks together")
    accumulate: int = flag(1, "backward passes of a step, between which nothing is sent")
    steps: int = flag(100, "steps of the run, including those before a resume")
    lr: float = flag(1e-3, "AdamW's learning rate")
    seed: int = flag(0, "of the first weights, of the rows of each step, and of the ranks' RNG")
    clip: float = flag(1.0, "largest norm of all gradients together; 0 leaves them alone")
    precision: str = flag(
        "float32",
        "of what is computed; weights are float32. With bfloat16 fsdp, hsdp and torch-fsdp gather "
        "the weights so, the others autocast",
        choices=PRECISIONS,
    )
    shard: int = flag(2, "hsdp: neighbouring ranks that share one model's weights")
    checkpoint: Path | None = field(
        default=None,
        metadata={"help": "folder of checkpoints; a run begins at the newest in it", "type": path},
    )
    every: int = flag(100, "steps from checkpoint to checkpoint; the last step has one too")


def check(options: Options, ranks: int) -> None:
    """Raise TrainError for what cannot be trained on so many ranks."""
    for name, choices in (("strategy", STRATEGIES), ("precision", PRECISIONS)):
        if (got := getattr(options, name)) not in choices:
            raise TrainError(f"--{name}: expected one of {', '.join(choices)}, got {got!r}")
    counts = ("width", "layers", "heads", "context", "batch", "accumulate", "shard", "every")
    limits = {"context": len(text()), "seed": 2**63}  # length of the text; torch's seeds
    for name in (*counts, "steps", "lr", "seed", "clip"):
        least, limit = int(name in counts), limits.get(name, math.inf)
        if not least <= (number := getattr(options, name)) < limit:
            wanted = f"at least {least} and less than {limit}"
            raise TrainError(f"--{name}: expected {wanted}, got {number}")
    if options.width % options.heads:
        raise TrainError(
            f"--width: expected a multiple of the {options.heads} heads, got {options.width}"
        )
    if options.strategy == "single" and ranks > 1:
        raise TrainError(f"--strategy: single trains on 1 rank, got {ranks}; choose another")
    if options.strategy == "hsdp" and ranks % options.shard:
        raise TrainError(
            f"--shard: hsdp's mesh has rows of {options.shard} ranks, and {ranks} ranks are no "
            "whole number of rows"
        )
    parts = ranks * options.accumulate
    if options.batch % parts:
        raise TrainError(
            f"--batch: expected a multiple of {parts} ({ranks} ranks × {options.accumulate} "
            f"backward passes), got {options.batch}"
        )


def compare(options: Options) -> None:
    """Raise TrainError on all ranks unless all have the same flags; a folder may have two names."""
    mine = asdict(options) | {"checkpoint": "a folder" if options.checkpoint else "none"}
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, {name: str(value) for name, value in mine.items()})
    for rank, theirs in enumerate(everyones):
        for name, value in theirs.items():
            if value != (first := everyones[0][name]):
                raise TrainError(
                    f"--{name}: expected the same on all ranks, got {first} on rank 0, "
                    f"{value} on rank {rank}"
                )


def raise_on_all(problem: str, group: dist.ProcessGroup | None = None) -> None:
    """Raise TrainError on all ranks, which all come here, if there is a problem on one of them."""
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem, group)
    for rank, each in enumerate(problems):
        if each:
            raise TrainError(f"rank {rank}: {each}")
