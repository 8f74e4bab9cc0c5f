"""What a grid prices on one GPU: a rank's part of a job's layer, and its products in eight bits.

A layer of each of the book's jobs, as one rank of T holds it when T split its width: heads,
feed-forward and heads of keys over T, and nothing is sent. It runs on micro-batches of one to eight
sequences, forward and backward, with and without recomputation; gradients are dropped in between.
Operations are counted as in `rates`: attention's half that no mask hides, backward twice forward's,
and a recomputed layer its forward once more.

Its matrices' products are timed in bf16, and in e4m3 with fast accumulation: with a scale for each
tensor, and for each row. Casting to eight bits is left out.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import minidist
from benchmarks.cases.rates import passes
from benchmarks.cases.small_job import Shape
from benchmarks.cases.split import Job, Part, normal
from benchmarks.harness import turns
from benchmarks.harness.memory import free
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.streams import attempt, streamed
from minidist.memory.meter import Meter
from minidist.planner import jobs

WANTED = ("medium", "large", "small")
SHAPES = tuple(Shape(1, *jobs.SHAPES[job][1:6]) for job in WANTED)
TOKENS = jobs.SEQUENCE
RANKS = (1, 2, 4, 8)
SEQUENCES = (2, 4, 8)  # of a micro-batch, besides one
LEAST, MOST = 2, 7  # rounds in which a layer is timed
OF_PRODUCT = 0.4  # seconds to time a product, if there are so many
START = 20  # seconds for a process to begin, and for the last measurement to end


class Share(NamedTuple):
    """A rank's part of a layer, on a micro-batch. `way`: "bf16" throughout, or "autocast"."""

    shape: Shape
    tensor: int
    tokens: int
    sequences: int = 1
    checkpointed: bool = False
    way: str = "bf16"


class Products(NamedTuple):
    """A rank's matrices, each times a sequence."""

    shape: Shape
    tensor: int
    tokens: int


def plans(shapes: tuple[Shape, ...], tokens: int) -> list[Share | Products]:
    """What to measure, the most wanted first: time may run out in the last."""
    both = (False, True)
    alone = [Share(*each, tokens, 1, again) for each in product(shapes, RANKS) for again in both]
    eight_bits = [Products(*each, tokens) for each in product(shapes, RANKS)]
    more = [
        Share(shape, ranks, tokens, sequences, again)
        for shape, sequences, ranks, again in product(shapes, SEQUENCES, RANKS, both)
    ]
    cast = [Share(shapes[0], *each, "autocast") for each in product(RANKS, [tokens], [1], both)]
    return [*alone, *eight_bits, *more, *cast]


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each layer and product, also if it found no memory or no time."""
    alone, todo, seconds = Setup(1, scope.device), plans(SHAPES, TOKENS), clock.left()
    yield from streamed(alone, on_rank, todo, seconds - START, timeout=seconds)


def on_rank(todo: list[Share | Products], seconds: float, path: str) -> None:
    """On the only rank: one after the other, and a line for each row.

    Raises:
        RuntimeError: some failed, but not for want of memory or time.
    """
    clock, failed = Clock(seconds), 0
    for done, each in enumerate(todo):
        what = "layer" if isinstance(each, Share) else "product"
        about: Row = {"what": what, **each._asdict(), "shape": None, "width": each.shape.width}
        del about["shape"]
        failed += attempt(path, about, partial(measured, each, clock, len(todo) - done))
        free()
        torch.cuda.empty_cache()
    if failed:
        raise RuntimeError(f"{failed} of {len(todo)} failed")


def measured(each: Share | Products, clock: Clock, left: int) -> Iterator[Row]:
    """Its rows, in its share of the time that is left."""
    share = clock.left() / left
    try:
        yield from layer(each, share) if isinstance(each, Share) else products(each, share)
    except torch.OutOfMemoryError as error:
        yield {"out_of_memory": str(error).splitlines()[0]}


def layer(share: Share, seconds: float) -> Iterator[Row]:
    """Time, operations per second and the peak of memory, in about so many seconds."""
    meter = Meter(minidist.device())
    part = layer_of(share)
    again = partial(checkpoint, part, use_reentrant=False)
    parts = parts_of(share, part, again if share.checkpointed else part)
    calls = [*parts.values()]

    def step() -> None:
        for call in calls:
            call()

    step()  # warms up
    peak = meter.curve(step).peak
    rounds, found = timed(parts, seconds)
    start = time.perf_counter()
    step()  # the GPU had nothing to do: how long the host takes to ask for it all
    host = time.perf_counter() - start
    sizes = share.shape.sizes(share.tokens)
    done = 1e-12 * share.sequences * (sizes.operations - sizes.head) / share.tensor
    forward, backward = (found[part][1] for part in ("forward", "backward"))
    yield {
        "ms": {part: turns.milliseconds(found[part]) for part in ("forward", "backward")},
        "rounds": rounds,
        "host_ms": turns.digits(1e3 * host),
        "forward_tflops": turns.digits(done / forward),
        "tflops": turns.digits(done * (3 + share.checkpointed) / (forward + backward)),
        "peak_bytes": peak,
    }


def timed(parts: Mapping[str, turns.Call], seconds: float) -> tuple[int, dict[str, list[float]]]:
    """In how many rounds the parts were timed, in about so many seconds; quartiles of each."""
    trial = turns.in_order(parts, 1).intervals.values()
    rounds = int(seconds / sum(end - start for ((start, end),) in trial)) - 3
    rounds = max(LEAST, min(MOST, rounds))
    return rounds, turns.quartiles([turns.in_order(parts, rounds)])


def layer_of(share: Share) -> Part:
    """A rank's part of a layer, on its device."""
    part = held(share.shape, share.tensor).to_empty(device=minidist.device()).to(dtype_of(share))
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.RMSNorm):
            module.reset_parameters()
    return part


def dtype_of(share: Share) -> torch.dtype:
    return torch.bfloat16 if share.way == "bf16" else torch.float32


def parts_of(share: Share, part: nn.Module, block: Any) -> dict[str, turns.Call]:
    """Forward and backward of the block, and dropping the part's gradients, in this order."""
    size = share.sequences, share.tokens, share.shape.width
    x, gradient = torch.randn(2, *size, dtype=dtype_of(share), device=minidist.device()).unbind()
    x.requires_grad_()

    def drop() -> None:
        part.zero_grad()
        x.grad = None

    return {**passes(block, x, gradient, share.way == "bf16"), "drop": drop}


def held(shape: Shape, ranks: int) -> Part:
    """A rank's part of a layer, with the norms that a Llama has, on the meta device."""
    with torch.device("meta"):
        part = Part(Job(*shape[1:5]), ranks)
        part.norm, part.mlp_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
    return part


def products(each: Products, seconds: float) -> Iterator[Row]:
    """A row for each of a rank's matrices that has a shape of its own."""
    part = held(each.shape, each.tensor)
    matrices = {"query": part.qkv[0], "key": part.qkv[1], "out": part.out}
    matrices |= {"gate": part.gate, "down": part.down}
    for name, linear in matrices.items():
        outputs, inputs = linear.weight.shape
        with minidist.device():
            row = compared(each.tokens, inputs, outputs, min(OF_PRODUCT, seconds))
        yield {"matrix": name, "inputs": inputs, "outputs": outputs, **row}


def compared(rows: int, inputs: int, outputs: int, seconds: float) -> Row:
    """One product in each precision: time, operations per second, and the error of eight bits."""
    x, weight = normal(rows, inputs), normal(outputs, inputs)
    ways: dict[str, turns.Call] = {"bf16": lambda: x @ weight.t()}
    right, refused, off = (x @ weight.t()).float(), {}, {}
    for name, dims in (("fp8", (0, 1)), ("fp8, rowwise", (1,))):
        call = in_eight_bits(x, weight, dims)
        try:
            off[name] = turns.digits(((call().float() - right).norm() / right.norm()).item())
            ways[name] = call
        except (RuntimeError, ValueError) as error:
            refused[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    del right
    repeats = turns.repeats_within(seconds, turns.trial(ways))
    repeats = repeats._replace(rounds=max(turns.LEAST_ROUNDS, repeats.rounds))
    found = turns.quartiles([turns.take_turns(ways, repeats)])
    done = 2e-12 * rows * inputs * outputs
    row: Row = {
        "ms": {way: turns.milliseconds(times) for way, times in found.items()},
        "tflops": {way: turns.digits(done / times[1]) for way, times in found.items()},
        "error_of": off,
    }
    return row | ({"refused": refused} if refused else {})


def in_eight_bits(x: Tensor, weight: Tensor, dims: tuple[int, ...]) -> Any:
    """A call of the product in e4m3, each number over the largest along these dimensions."""
    most = torch.finfo(torch.float8_e4m3fn).max

    def cast(tensor: Tensor) -> tuple[Tensor, Tensor]:
        scale = tensor.abs().amax(dims, keepdim=True).float() / most
        return (tensor / scale).to(torch.float8_e4m3fn), scale

    (a, of_a), (b, of_b) = cast(x), cast(weight)
    scales = (of_a, of_b.t()) if dims == (1,) else (of_a.squeeze(), of_b.squeeze())
    return partial(
        torch._scaled_mm, a, b.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True
    )
