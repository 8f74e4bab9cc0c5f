"""A small GPT trained in several ways: their losses compared, their steps timed in turns.

Each way trains its own copy on the same text. A rank reads other rows than its peers, but the same
ones in every way, so the losses must agree: what is timed is the same training.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import minidist
from benchmarks.harness import turns
from benchmarks.harness.record import Row, worst_of_ranks
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import MIB, Scope, Setup
from benchmarks.harness.turns import Repeats, Turns
from course.training.data import characters, text
from course.training.models import GPT

CONTEXT = 64  # tokens that the model can look at
STEPS = 3  # in a turn, and before anything is looked at
COMPARED_STEPS = 4
SHARE = 0.15  # of a setup's time, for the turns in one precision
NO_TIME = "no time for enough rounds"
TOLERANCE = {  # of a loss
    "fp32": 1e-9,  # compared in float64, where only the order of sums can make a difference
    "bf16": 2e-2,  # 1 and the next number are 1/128 apart
}

Trained = tuple[Callable[[torch.Tensor], torch.Tensor], Optimizer]
Way = Callable[[GPT], Trained]  # wraps a model, and makes what updates it


@dataclass(frozen=True)
class Config:
    """A model and its batch on each rank: rows, and tokens of each.

    `checkpointed` blocks keep only their inputs.
    """

    width: int = 192
    layers: int = 4
    batch: int = 4
    tokens: int = CONTEXT
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    checkpointed: bool = False


NARROW = Config(width=32, layers=2)  # whose losses are compared
EXACT = replace(NARROW, dtype=torch.float64)


@cache
def corpus() -> tuple[torch.Tensor, int]:
    """The text as ids, and how many different ones there are."""
    ids, alphabet = characters(text())
    return ids, len(alphabet)


def build(config: Config, device: torch.device | str) -> GPT:
    """The same on every rank and in every way; on "meta" it takes no memory."""
    torch.manual_seed(0)
    _, vocab = corpus()  # its ids are on the CPU, whatever the device
    with torch.device("meta" if device == "meta" else "cpu"):
        module = GPT(vocab, config.width, config.layers, heads=4, context=CONTEXT)
    for block in module.blocks if config.checkpointed else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return module.to(device, config.dtype)


def bucket_mib(module: nn.Module) -> float:
    """A seventh of the gradients: torch's 25 MiB would hold those of the whole model."""
    return max(0.1, round(sum(each.nbytes for each in module.parameters()) / MIB / 7, 1))


def sgd(wrap: Callable[[GPT], nn.Module]) -> Way:
    """Train what `wrap` makes of the model by plain SGD."""

    def way(module: GPT) -> Trained:
        return wrap(module), torch.optim.SGD(module.parameters(), lr=0.01)

    return way


class Training:
    """One way's training on this rank; `device`: where its model is made, if not the rank's."""

    def __init__(self, way: Way, config: Config, device: str | None = None) -> None:
        self._config = config
        self._model, self._optimizer = way(build(config, device or minidist.device()))
        self._draw = torch.Generator().manual_seed(dist.get_rank())
        self._losses: list[torch.Tensor] = []

    def step(self) -> None:
        """One step; its gradients stay until the next."""
        device, length = minidist.device(), self._config.tokens + 1
        ids = corpus()[0]
        starts = torch.randint(len(ids) - length, (self._config.batch, 1), generator=self._draw)
        rows = ids[starts + torch.arange(length)].to(device)
        self._optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=self._config.autocast):
            scores = self._model(rows[:, :-1]).flatten(0, 1)
            wide = torch.promote_types(scores.dtype, torch.float32)  # a loss must not be rounded
            loss = cross_entropy(scores.to(wide), rows[:, 1:].flatten())
        loss.backward()
        self._optimizer.step()
        self._losses.append(loss.detach())

    def losses(self, steps: int) -> torch.Tensor:
        """This rank's, of all steps, after some more; float64, on the CPU."""
        for _ in range(steps):
            self.step()
        return torch.stack(self._losses).double().cpu()


class Comparison(NamedTuple):
    """Ways to train, compared with a reference. Ranks import its functions."""

    ways: Callable[[str], dict[str, Way]]  # by precision; "alone" sends nothing, learns otherwise
    reference: Way  # whose losses the others must have
    autocast: bool = False  # whether "bf16" stands for autocast, or the ways see to it themselves
    checkpointed: tuple[str, ...] = ()  # ways that are measured with checkpointed blocks too
    untimed: tuple[str, ...] = ()  # ways whose losses alone are compared


def compared(ways: dict[str, Way], reference: Way, precision: str, config: Config) -> Iterator[Row]:
    """On a rank, a row for each way: how far its losses are from the reference's."""
    exact = replace(config, autocast=False)
    want = Training(reference, exact).losses(COMPARED_STEPS)
    for name, way in ways.items():
        losses = Training(way, config).losses(COMPARED_STEPS)
        far = ((losses - want) / want).abs().max().item()
        right = far <= TOLERANCE[precision]  # not so for NaN
        what = {"what": "losses", "way": name, "precision": precision}
        yield {**what, "checkpointed": config.checkpointed, "difference": far, "right": right}


def refused(ways: dict[str, Way]) -> dict[str, str]:
    """On a rank: the ways that some rank's backend does not support, and its error.

    Only the backend's own collectives are tried: Gloo may lack one for a GPU's tensors.
    """
    backends = [name for name in ways if name.startswith("torch") or "native" in name]
    errors = {name: turns.refusal(lambda: Training(ways[name], NARROW).step()) for name in backends}  # noqa: B023
    return {name: error for name, error in errors.items() if error}


def time_steps(
    ways: dict[str, Way], config: Config, rounds: int | None, seconds: float = 0
) -> Turns:
    """On a rank: steps of the ways, in turns; if no `rounds` are given, as many as time allows."""
    steps = {name: Training(way, config).step for name, way in ways.items()}
    if rounds:
        return turns.take_turns(steps, Repeats(STEPS, rounds))
    return turns.take_turns(steps, turns.repeats_within(seconds, turns.trial(steps)))


def step_rows(of_ranks: list[Turns], against: str) -> Iterator[Row]:
    """For each way quartiles of a step in milliseconds, and the ratio of the medians."""
    rounds = len(of_ranks[0].intervals[against])
    if not rounds:
        yield {"what": "step", "left_out": NO_TIME}
        return
    found = turns.quartiles(of_ranks)
    for way, seconds in found.items():
        ratio = turns.digits(seconds[1] / found[against][1])
        row = {"what": "step", "way": way, "ms": turns.milliseconds(seconds), "ratio": ratio}
        yield {**row, "rounds": rounds, "steps": of_ranks[0].calls}


def compare(comparison: Comparison, setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """Rows of losses and of times in one setup.

    Raises:
        AssertionError: after them, if losses differ from the reference's.
    """
    seconds = SHARE * clock.left()
    of_ranks = setup.launch(on_rank, comparison, scope, seconds, timeout=clock.left())
    rows = [worst_of_ranks(each) for each in zip(*(rows for rows, _ in of_ranks), strict=True)]
    yield from rows
    for precision in scope.precisions:
        timed = [of_rank[precision] for _, of_rank in of_ranks]
        against = "torch" if "torch" in timed[0].intervals else "ddp"
        for row in step_rows(timed, against):
            yield {**row, "precision": precision, "against": against}
    wrong = [f"{row['way']}: {row['difference']:.1e}" for row in rows if not row.get("right", True)]
    assert not wrong, f"losses differ from the reference's, such as {wrong[0]}"


def on_rank(
    comparison: Comparison, scope: Scope, seconds: float
) -> tuple[list[Row], dict[str, Turns]]:
    """On a rank: rows of refusals and losses, and for each precision the turns."""
    os.environ["MINIDIST_CHECK"] = "0"  # torch does not check either
    unsupported = refused(comparison.ways("fp32"))
    rows: list[Row] = [{"what": "refused", "way": n, "error": e} for n, e in unsupported.items()]
    timed = {}
    for precision in scope.precisions:
        ways = {n: w for n, w in comparison.ways(precision).items() if n not in unsupported}
        alike = {name: way for name, way in ways.items() if name != "alone"}
        autocast = comparison.autocast and precision == "bf16"
        config = EXACT if precision == "fp32" else replace(NARROW, autocast=autocast)
        rows += compared(alike, comparison.reference, precision, config)
        again = {name: ways[name] for name in comparison.checkpointed}
        rows += compared(again, comparison.reference, precision, replace(config, checkpointed=True))
        for name in comparison.untimed:
            del ways[name]
        config = Config(scope.width, autocast=autocast)
        timed[precision] = time_steps(ways, config, scope.rounds, seconds)
    return rows, timed
