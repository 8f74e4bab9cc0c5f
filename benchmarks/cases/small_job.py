"""The book's small job on one GPU: what a step takes of memory and of time, beside `minidist.plan`.

A Llama of 3.2 billion parameters trains on random ids under autocast, by AdamW: alone, and in
PyTorch's DDP, which has its buckets also where there is one rank. Its blocks leave the rotations
out, of which nothing is kept. Narrower and wider ones show the rate that each width reaches.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import minidist
from benchmarks.harness import turns
from benchmarks.harness.memory import free
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.turns import Repeats, digits
from course.training.models import LlamaBlock
from minidist.memory.meter import Meter
from minidist.planner.hardware import ACCELERATORS, H100, Accelerator
from minidist.planner.planner import plan
from minidist.planner.sizes import Sizes

WARM_UP = 2  # steps; in the second one DDP has laid out its buckets anew
REPEATS = Repeats(calls=2, rounds=7)
PARTS = ("forward", "backward", "update")


class Shape(NamedTuple):
    """A Llama whose head is its embedding."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int

    def sizes(self, tokens: int) -> Sizes:
        """As a plan takes them."""
        return Sizes.llama(*self, tokens, tied=True)


class Run(NamedTuple):
    """A training. `way`: "single", or "ddp" with options. A sequence has so many `tokens`."""

    way: str
    shape: Shape
    tokens: int
    batch: int = 1
    checkpointed: bool = False


SMALL = Shape(28, 3072, 8192, 24, 8, 128_256)
MEMORY = tuple(
    [Run("single", SMALL, tokens) for tokens in (2048, 8192)]
    + [Run("single", SMALL, 8192, checkpointed=True)]
    + [Run(way, SMALL, 2048) for way in ("ddp", "ddp, views", "ddp, views, fused")]
)
RATES = tuple(
    Run("single, fused", Shape(8, w, 7 * w // 2, w // 128, w // 512, 32_000), 2048, batch=4)
    for w in (512, 1024, 2048, 4096)
)


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each run."""
    (rows,) = Setup(1, scope.device).launch(on_rank, MEMORY, RATES, timeout=clock.left())
    yield from rows


def on_rank(memory: tuple[Run, ...], rates: tuple[Run, ...]) -> list[Row]:
    """On the only rank: each run, one after the other."""
    meter = Meter(minidist.device())
    sections = ("memory", memory, partial(footprint, meter)), ("rate", rates, rate)
    return [
        {"what": what, "way": run.way, "width": run.shape.width, **tried(run, of)}
        for what, runs, of in sections
        for run in runs
    ]


def tried(run: Run, of: Callable[[Run], Row]) -> Row:
    """What the run shows, or that the GPU is too small for it."""
    row = {"tokens": run.tokens, "batch": run.batch, "checkpointed": run.checkpointed}
    try:
        return row | of(run)
    except torch.OutOfMemoryError as error:
        return row | {"out_of_memory": str(error).splitlines()[0]}
    finally:
        free()
        torch.cuda.empty_cache()  # does nothing where there is no GPU


def footprint(meter: Meter, run: Run) -> Row:
    """Bytes that a step holds and takes at most, in each part and after each block; its time."""
    before = meter.now()  # of libraries, and of a DDP whose buckets are freed a little later
    training = Training(run)
    for _ in range(WARM_UP):
        training.step()
    curves = {part: meter.curve(getattr(training, part)) for part in PARTS}
    levels = training.levels(meter)
    told = forecast(run)
    peak = max(curve.peak for curve in curves.values())
    row: Row = {
        "bytes_before": before,
        "parameters": run.shape.sizes(run.tokens).parameters,
        "held_bytes": curves["forward"].start,
        "peak_bytes": peak,
        "predicted_peak_bytes": round(told.peak),
        "peak_bytes_factor": digits(told.peak / peak),
        "start_bytes_of": {part: curve.start for part, curve in curves.items()},
        "peak_bytes_of": {part: curve.peak for part, curve in curves.items()},
        "levels": levels,
    }
    return row | timed(training, 1e3 * told.sequential)


def rate(run: Run) -> Row:
    """Operations per second, of a step that updates in one launch."""
    training, gpu = Training(run), accelerator()
    for _ in range(WARM_UP):
        training.step()
    row = timed(training, 1e3 * forecast(run).sequential)
    done = 3 * run.batch * run.shape.sizes(run.tokens).operations
    flops = done / (row["ms"][1] / 1e3)
    planned = gpu.rate(run.shape.width)
    return row | {"tflops": digits(1e-12 * flops), "planned_tflops": digits(1e-12 * planned)}


def timed(training: "Training", predicted: float) -> Row:
    """Quartiles of a step, beside what is predicted."""
    found = turns.take_turns({"step": training.step}, REPEATS)
    ms = turns.milliseconds(turns.quartiles([found])["step"])
    return {"ms": ms, "predicted_ms": digits(predicted), "ms_factor": digits(predicted / ms[1])}


def forecast(run: Run) -> Any:
    """What `plan` says of the run on one rank."""
    told = plan(
        run.shape.sizes(run.tokens), accelerator(), 1, batch=run.batch,
        checkpointing=run.checkpointed, gradient_as_bucket_view="views" in run.way,
        foreach="fused" not in run.way,
    )  # fmt: skip
    return told.forecasts[run.way.split(",")[0]]


def accelerator() -> Accelerator:
    """The rates of this GPU; of one that the book does not know, and of a CPU, an H100's."""
    name = torch.cuda.get_device_name() if minidist.device().type == "cuda" else ""
    return next((gpu for each, gpu in ACCELERATORS.items() if each in name), H100)


class Llama(nn.Module):
    """From ids [batch, tokens] to the mean loss of the next ones."""

    def __init__(self, shape: Shape, checkpointed: bool) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(block_of(shape, checkpointed) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)

    def forward(self, ids: Tensor) -> Tensor:
        """The loss."""
        x = self.token(ids[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = nn.functional.linear(self.norm(x), self.token.weight)
        return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def block_of(shape: Shape, checkpointed: bool) -> LlamaBlock:
    """A Llama's block with the norms that it has."""
    block = LlamaBlock(shape.width, shape.hidden, shape.heads, shape.kv_heads)
    block.norm, block.mlp_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
    if checkpointed:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return block


class Training:
    """The three parts of a step, which can be called one by one."""

    def __init__(self, run: Run) -> None:
        self._device = minidist.device()
        with self._device:
            model = Llama(run.shape, run.checkpointed)
            self._ids = torch.randint(run.shape.vocabulary, (run.batch, run.tokens + 1))
        self._blocks = model.blocks
        views = "views" in run.way
        ddp = partial(nn.parallel.DistributedDataParallel, gradient_as_bucket_view=views)
        self._model = ddp(model) if run.way.startswith("ddp") else model
        fused = True if "fused" in run.way else None
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)

    def step(self) -> None:
        """One step."""
        for part in PARTS:
            getattr(self, part)()

    def forward(self) -> None:
        """To the loss."""
        with torch.autocast(self._device.type, torch.bfloat16):
            self._loss = self._model(self._ids)

    def backward(self) -> None:
        """To the gradients."""
        self._loss.backward()
        del self._loss

    def update(self) -> None:
        """To new weights; the gradients are dropped, or zeros if they are views."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def levels(self, meter: Meter) -> dict[str, list[int]]:
        """Bytes held after each block of a further step, in forward and in backward."""
        found: dict[str, list[int]] = {"forward": [], "backward": []}

        def after(part: str) -> Callable[..., None]:
            return lambda *_: found[part].append(meter.now())

        hooks = []
        for block in self._blocks:
            hooks.append(block.register_forward_hook(after("forward")))
            hooks.append(block.register_full_backward_hook(after("backward")))
        self.step()
        for hook in hooks:
            hook.remove()
        return found
