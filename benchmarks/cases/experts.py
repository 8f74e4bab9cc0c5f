"""What a planner of grids prices on one GPU and `grid` does not have: experts, choice of what is
recomputed, and casts to eight bits.

Experts: the three products of a SwiGLU, grouped, for as many tokens of each of a rank's experts;
alone ("products"), with what lies between them ("feed-forward"), and one expert after the other,
each by plain products ("loop").

A layer of the medium job in bf16, as `grid` has it, compiled: nothing is recomputed, or all but
the outputs of products and attention ("selective"), or of every second product, too, as torchtitan
does ("every other"), or all ("full"). A compiler recomputes on its own what costs little.

Eight bits: a matrix's product and both of its backward, in bf16 and in fp8 as torchao has it: one
scale for each tensor, found anew in each step; e4m3, of the output's gradient e5m2; accumulation
is fast in forward only. The casts are compiled once for all shapes, and write each tensor also
transposed. On an H200 they took about four times as long as their memory traffic has to, so "fp8"
is a lower bound of the gain, and "fp8, products" an upper one.

Operations are those of a step without recomputation: three times forward's.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import minidist
from benchmarks.cases.grid import SHAPES, Share, held, layer_of, parts_of, timed
from benchmarks.cases.small_job import Shape
from benchmarks.cases.split import normal
from benchmarks.harness import turns
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.streams import attempt, streamed
from minidist.memory.meter import Meter

MEDIUM = SHAPES[0]
TOKENS = 8192
LONG = 32_768
EXPERTS = ((7168, 2048), (4096, 14_336), (4096, 1536))  # width and hidden width
ON_A_RANK = (1, 4, 8, 32)
OF_EACH = (64, 256, 1024, 4096)  # tokens
LOOPED = (1, 8)  # experts of a rank
RECOMPUTED = ("none", "selective", "full", "every other")
LEAD = 6_000_000  # cycles that the GPU waits in each round, for the host to run ahead
OF_PRODUCT = 0.4  # seconds to time a matrix
START = 15  # seconds for a process to begin, and for the last measurement to end
ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
MM = torch.ops.aten.mm.default
KEPT = {MM, *(getattr(torch.ops.aten, f"_scaled_dot_product_{each}").default for each in ATTENTION)}


class Group(NamedTuple):
    """Experts of one rank. `tokens`: of each; `way`: see above."""

    width: int
    hidden: int
    experts: int
    tokens: int
    way: str = "products"


class Layer(NamedTuple):
    """A layer and what is recomputed, on micro-batches of sequences of these `lengths`."""

    shape: Shape
    recomputed: str
    lengths: tuple[int, ...]
    sequences: int = 1
    compiled: bool = True


class Matrix(NamedTuple):
    """One matrix of a layer, times so many tokens."""

    matrix: str
    inputs: int
    outputs: int
    tokens: int


Case = Group | Layer | Matrix


def plans() -> list[Case]:
    """What to measure, the most wanted first: time may run out in the last."""
    each = [(*wide, *most) for wide, *most in product(EXPERTS, ON_A_RANK, OF_EACH)]
    looped = [Group(*some, "loop") for some in each if some[2] in LOOPED]
    lengths = (TOKENS, LONG)
    first, last = RECOMPUTED[:3], RECOMPUTED[3:]
    return [
        *(Group(*some) for some in each),
        *matrices(MEDIUM, TOKENS),
        *(Layer(MEDIUM, which, lengths) for which in first),
        *(Layer(MEDIUM, which, lengths, compiled=False) for which in RECOMPUTED),
        *(Layer(MEDIUM, which, lengths[:1], 2, compiled=False) for which in RECOMPUTED),
        *(Group(*some, "feed-forward") for some in each),
        *(Layer(MEDIUM, which, lengths) for which in last),
        *(Layer(MEDIUM, which, lengths[:1], 2) for which in first),
        *looped,
    ]


def matrices(shape: Shape, tokens: int) -> list[Matrix]:
    """Those of a layer that have a shape of their own."""
    part = held(shape, 1)
    named = {"query": part.qkv[0], "key": part.qkv[1], "gate": part.gate, "down": part.down}
    return [Matrix(name, *each.weight.t().shape, tokens) for name, each in named.items()]


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each case and length, also if it found no memory or no time."""
    alone, seconds = Setup(1, scope.device), clock.left()
    yield from streamed(alone, on_rank, plans(), seconds - START, timeout=seconds)


def on_rank(todo: list[Case], seconds: float, path: str) -> None:
    """On the only rank: one after the other, and a line for each row.

    Raises:
        RuntimeError: some failed, but not for want of memory or time.
    """
    clock, failed = Clock(seconds), 0
    drop_garbage()
    for done, case in enumerate(todo):
        about: Row = {"what": type(case).__name__.lower(), **case._asdict()}
        if isinstance(case, Layer):
            torch.compiler.reset()  # it keeps few versions of a function
            about["width"] = about.pop("shape").width
        failed += attempt(path, about, partial(measured, case, clock, len(todo) - done))
        drop_garbage()
    if failed:
        raise RuntimeError(f"{failed} of {len(todo)} failed")


def drop_garbage() -> None:
    """Free what lies in cycles; what is left, such as modules, is not looked through again."""
    gc.collect()
    gc.freeze()
    torch.cuda.empty_cache()  # does nothing where there is no GPU


def measured(case: Case, clock: Clock, left: int) -> Iterator[Row]:
    """Its rows, in its share of the time that is left."""
    of = {Group: grouped, Layer: layer, Matrix: eight_bits}[type(case)]
    try:
        yield from of(case, lambda: clock.left() / left)
    except torch.OutOfMemoryError as error:
        yield {"out_of_memory": str(error).splitlines()[0]}


Seconds = Callable[[], float]  # of a share; raises if time is over


# Experts


def grouped(group: Group, seconds: Seconds) -> Iterator[Row]:
    """Time and operations per second of all experts of a rank."""
    share, refused = seconds(), ""
    with minidist.device():
        try:
            found, by = timed(group_parts(group), share), "loop" if group.way == "loop" else GROUPED
        except (RuntimeError, AttributeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            refused = f"{type(error).__name__}: {error}".splitlines()[0]
            found, by = timed(group_parts(group._replace(way="loop")), share), "loop"
    done = 6 * group.experts * group.tokens * group.width * group.hidden
    yield {"by": by} | rates(*found, done) | ({"refused": refused} if refused else {})


def rates(rounds: int, found: dict[str, list[float]], done: float) -> Row:
    """Times of forward and backward, and the operations per second that they mean."""
    forward, backward = (found[part][1] for part in ("forward", "backward"))
    return {
        "ms": {part: turns.milliseconds(found[part]) for part in ("forward", "backward")},
        "rounds": rounds,
        "forward_tflops": turns.digits(1e-12 * done / forward),
        "tflops": turns.digits(3e-12 * done / (forward + backward)),
    }


def group_parts(group: Group) -> dict[str, turns.Call]:
    """Forward, backward and dropping gradients, to be called in this order."""
    count, rows = group.experts, group.tokens
    shapes = ((group.hidden, group.width), (group.hidden, group.width), (group.width, group.hidden))
    inputs = [group.width] if group.way == "feed-forward" else [group.width, group.hidden]
    if group.way == "loop":
        leaves = [normal(rows, size) for _ in range(count) for size in inputs]
        weights = [normal(*shape) for _ in range(count) for shape in shapes]
    else:
        leaves = [normal(count * rows, size) for size in inputs]
        weights = [normal(count, *shape) for shape in shapes]
    ends = torch.arange(rows, (count + 1) * rows, rows, dtype=torch.int32)
    leaves = [each.requires_grad_() for each in (*leaves, *weights)]
    forward = partial(FORWARD[group.way], leaves[: -len(weights)], leaves[-len(weights) :], ends)
    upstream = [torch.randn_like(each) for each in forward()]
    outputs: list[list[Tensor]] = []

    def drop() -> None:
        for leaf in leaves:
            leaf.grad = None

    return {
        "lead": lead,
        "forward": lambda: outputs.append(forward()),
        "backward": lambda: torch.autograd.backward(outputs.pop(), upstream),
        "drop": drop,
    }


def lead() -> None:
    """Keep the GPU waiting while the host launches what comes next."""
    if minidist.device().type == "cuda":
        torch.cuda._sleep(LEAD)


GROUPED = "grouped_mm" if hasattr(nn.functional, "grouped_mm") else "torch._grouped_mm"


def multiply(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows of x[rows, inputs] times its matrix of weights[experts, outputs, inputs].

    `ends`: after which row each expert's rows end.
    """
    call: Any = getattr(nn.functional, "grouped_mm", None) or torch._grouped_mm
    found: Tensor = call(x, weights.transpose(-2, -1), offs=ends)
    return found


def alone(inputs: list[Tensor], weights: list[Tensor], ends: Tensor) -> list[Tensor]:
    """The three products, each of an input of its own."""
    (x, y), (gate, up, down) = inputs, weights
    return [multiply(x, gate, ends), multiply(x, up, ends), multiply(y, down, ends)]


def feed_forward(inputs: list[Tensor], weights: list[Tensor], ends: Tensor) -> list[Tensor]:
    """The same as a SwiGLU."""
    (x,), (gate, up, down) = inputs, weights
    y = silu(multiply(x, gate, ends)) * multiply(x, up, ends)
    return [multiply(y, down, ends)]


def one_by_one(inputs: list[Tensor], weights: list[Tensor], _: Tensor) -> list[Tensor]:
    """The three products of each expert, by as many plain ones."""
    found = []
    for expert in range(len(weights) // 3):
        x, y = inputs[2 * expert :][:2]
        gate, up, down = weights[3 * expert :][:3]
        found += [x @ gate.t(), x @ up.t(), y @ down.t()]
    return found


FORWARD = {"products": alone, "feed-forward": feed_forward, "loop": one_by_one}


# What is recomputed


def layer(case: Layer, seconds: Seconds) -> Iterator[Row]:
    """For each length: time, bytes kept for backward, and the peak."""
    meter = Meter(minidist.device())
    part = layer_of(Share(case.shape, 1, case.lengths[0]))
    block = around(case, part)
    for tokens in case.lengths:
        seconds()  # is any left?
        parts = parts_of(Share(case.shape, 1, tokens, case.sequences), part, block)
        in_turn(parts)  # compiles, or warms up
        before = meter.now()
        parts["forward"]()
        kept = meter.now() - before
        parts["backward"]()
        parts["drop"]()
        peak = meter.curve(partial(in_turn, parts)).peak
        sizes = case.shape.sizes(tokens)
        done = case.sequences * (sizes.operations - sizes.head)
        found = rates(*timed({"lead": lead, **parts}, seconds()), done)
        yield {"tokens": tokens, "kept_bytes": kept, "peak_bytes": peak, **found}
        del parts
        gc.collect()


def in_turn(parts: Mapping[str, turns.Call]) -> None:
    """One after the other."""
    for call in parts.values():
        call()


def around(case: Layer, part: nn.Module) -> Any:
    """A call of the layer that recomputes and compiles as the case says."""
    block: Any = part
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if case.recomputed == "full":
        block = partial(again, part)
    elif case.recomputed != "none":
        policy = partial(contexts, every_other=case.recomputed == "every other")
        block = partial(again, part, context_fn=policy)
    if not case.compiled:
        return block
    cuda = minidist.device().type == "cuda"  # a CPU may have no compiler
    backend = "inductor" if cuda else "aot_eager_decomp_partition"
    return torch.compile(lambda x: block(x), dynamic=True, backend=backend)


def contexts(every_other: bool) -> Any:
    """Of forward and of recomputation: outputs of attention and of products are kept.

    Of products maybe only every other one, as torchtitan counts: the first, not the second.
    """
    count: Counter[bool] = Counter()

    def policy(context: Any, op: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        count[context.is_recompute] += op is MM
        skipped = op is MM and every_other and count[context.is_recompute] % 2 == 0
        kept = op in KEPT and not skipped
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


# Eight bits


def eight_bits(case: Matrix, seconds: Seconds) -> Iterator[Row]:
    """Three products in bf16, in fp8, and in fp8 with their casts; what remains of the gain."""
    with minidist.device():
        x, w = normal(case.tokens, case.inputs), normal(case.outputs, case.inputs)
        gradient = normal(case.tokens, case.outputs)
    backend = "inductor" if minidist.device().type == "cuda" else "eager"
    convert = torch.compile(cast, dynamic=True, backend=backend)

    def casts() -> list[Cast]:
        e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
        return [convert(x, e4m3), convert(w, e4m3), convert(gradient, e5m2)]

    before = casts()
    right = (x @ w.t()).float()
    off = ((scaled(*before)[0].float() - right).norm() / right.norm()).item()
    del right
    ways: dict[str, turns.Call] = {
        "bf16": lambda: (x @ w.t(), gradient @ w, gradient.t() @ x),
        "fp8, products": lambda: scaled(*before),
        "fp8, casts": casts,
        "fp8": lambda: scaled(*casts()),
    }
    repeats = turns.repeats_within(min(OF_PRODUCT, seconds()), turns.trial(ways))
    repeats = repeats._replace(rounds=max(turns.LEAST_ROUNDS, repeats.rounds))
    found = turns.quartiles([turns.take_turns(ways, repeats)])
    done = 6e-12 * case.tokens * case.inputs * case.outputs
    gains = {way: found["bf16"][1] / found[way][1] for way in ("fp8, products", "fp8")}
    yield {
        "ms": {way: turns.milliseconds(times) for way, times in found.items()},
        "tflops": {way: turns.digits(done / found[way][1]) for way in ("bf16", *gains)},
        "times_as_fast": {way: turns.digits(gain) for way, gain in gains.items()},
        "error": turns.digits(off),
    }


class Cast(NamedTuple):
    """A matrix in eight bits, the same transposed, and what both are to be multiplied by."""

    rows: Tensor
    columns: Tensor
    scale: Tensor


def cast(tensor: Tensor, dtype: torch.dtype) -> Cast:
    """The tensor over its scale, so that the largest number is the largest of the type."""
    scale = tensor.abs().amax().float() / torch.finfo(dtype).max
    eight = (tensor.float() / scale).to(dtype)
    return Cast(eight, eight.t().contiguous(), scale)


def scaled(x: Cast, w: Cast, gradient: Cast) -> list[Tensor]:
    """The output x[T, I] · w[O, I]ᵀ, and the gradients of x and of w."""
    multiply = partial(torch._scaled_mm, out_dtype=torch.bfloat16)
    return [
        multiply(x.rows, w.rows.t(), x.scale, w.scale, use_fast_accum=True),
        multiply(gradient.rows, w.columns.t(), gradient.scale, w.scale),
        multiply(gradient.columns, x.columns.t(), gradient.scale, x.scale),
    ]
