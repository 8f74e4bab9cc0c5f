"""One rank's part of a layer on one GPU: how much slower it computes than its share of the whole.

Splitting makes matrices narrower, batches smaller and blocks of attention shorter, and a GPU needs
large ones. What is measured is forward and backward of a block of Llama 3.1 8B in bf16: its part
when N ranks split its width; on micro-batches; attention by blocks, as in ring attention; and a
mixture of experts. Nothing is sent.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

import minidist
from benchmarks.harness import turns
from benchmarks.harness.memory import free
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup
from benchmarks.harness.turns import Repeats, digits
from course.training.models import LlamaBlock

REPEATS = Repeats(calls=3, rounds=7)


class Job(NamedTuple):
    """A block, the tokens of a batch, and of a long sequence; experts are 1/7 as wide."""

    width: int = 4096
    hidden: int = 14_336
    heads: int = 32
    kv_heads: int = 8
    tokens: int = 8192
    sequence: int = 32_768


JOB = Job()
RANKS = (1, 2, 4, 8)
MICRO_BATCHES = (8, 4, 2, 1)  # of a sixteenth of the tokens each
EXPERTS = (1, 4, 16, 64)  # on one rank; each token goes to two


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """A row for each way to split; `ratio`: its time over its share of the first row's."""
    (rows,) = Setup(1, scope.device).launch(on_rank, JOB, timeout=clock.left())
    yield from rows


def on_rank(job: Job) -> list[Row]:
    """On the only rank."""
    rows = []
    with minidist.device():
        for what in (tensor, micro_batch, attention, expert):
            for row in what(job):
                rows.append({"what": what.__name__.replace("_", " "), **row})
                free()
    return rows


def tensor(job: Job) -> Iterator[Row]:
    """A rank's columns and rows of the block, with its heads; its tokens of what lies between.

    Without `sequence_parallel` each rank computes the norms and sums of all tokens.
    """
    first = 0.0
    for split_tokens, ranks in ((False, 1), *product((False, True), RANKS[1:])):
        share = job.tokens // (ranks if split_tokens else 1)
        ms = trained(Part(job, ranks, split_tokens), tokens(job, share))
        first = first or ms[1]
        row = {"ranks": ranks, "sequence_parallel": split_tokens, "ms": ms}
        yield row | {"ratio": digits(ms[1] * ranks / first)}


def micro_batch(job: Job) -> Iterator[Row]:
    """The whole block, on a batch in fewer and fewer sequences at a time."""
    block, first = Part(job, 1), 0.0
    for batch in MICRO_BATCHES:
        ms = trained(block, tokens(job, job.tokens // 16, batch))
        first = first or ms[1] / batch
        yield {"sequences": batch, "ms": ms, "ratio": digits(ms[1] / batch / first)}


def attention(job: Job) -> Iterator[Row]:
    """The whole causal triangle, and the blocks of which ranks make it up in a ring."""
    ranks, share = RANKS[-1], job.sequence // RANKS[-1]
    lengths = {
        "whole": (job.sequence, job.sequence),
        "diagonal": (share, share),
        "below it": (share, share),
        "half of the keys": (share, share // 2),
        "half of the queries": (share // 2, share),
    }
    first = 0.0
    for block, (queries, keys) in lengths.items():
        causal = block in ("whole", "diagonal")
        ms = attended(job, queries, keys, causal)
        first = first or ms[1]
        pairs = queries * (queries + 1) / 2 if causal else queries * keys
        part = pairs / (job.sequence * (job.sequence + 1) / 2)  # of the work of the whole
        row = {"block": block, "ranks": ranks, "queries": queries, "keys": keys, "ms": ms}
        yield row | {"ratio": digits(ms[1] / (part * first))}


def expert(job: Job) -> Iterator[Row]:
    """As many rows for all experts together: one expert after the other, and in one call."""
    first = 0.0
    for experts, together in ((1, False), *product(EXPERTS[1:], (False, True))):
        rows = 2 * job.tokens // experts
        layer = Experts(experts, job.width, job.hidden // 7, together)
        ms = trained(layer, tokens(job, rows, experts))
        first = first or ms[1]
        row = {"experts": experts, "together": together, "rows": rows, "ms": ms}
        yield row | {"ratio": digits(ms[1] / first)}


class Part(LlamaBlock):
    """What a rank computes of a block: columns of the first matrices, rows of the second.

    `split_tokens`: it is given its part of the tokens, and returns the same. Copies and cuts stand
    for the all-gathers and reduce-scatters, and take as much of its memory's time.
    """

    def __init__(self, job: Job, ranks: int, split_tokens: bool = False) -> None:
        super().__init__(job.width, job.hidden // ranks, job.heads, job.kv_heads)
        heads, shared = job.heads // ranks, max(1, job.kv_heads // ranks)
        self.heads = heads, shared, shared
        size = job.width // job.heads
        self.qkv = nn.ModuleList(nn.Linear(job.width, n * size, bias=False) for n in self.heads)
        self.out = nn.Linear(heads * size, job.width, bias=False)
        if split_tokens:
            for norm in (self.norm, self.mlp_norm):
                norm.register_forward_hook(lambda _, inputs, y: y.repeat(1, ranks, 1))
            for last in (self.out, self.down):
                last.register_forward_hook(lambda _, inputs, y: y.chunk(ranks, dim=1)[0])


class Experts(nn.Module):
    """Narrow feed-forward blocks, each for as many rows."""

    def __init__(self, experts: int, width: int, hidden: int, together: bool) -> None:
        super().__init__()
        self.together = together
        shapes = (width, hidden), (width, hidden), (hidden, width)
        self.weights = nn.ParameterList(torch.randn(experts, *each) for each in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """[experts, rows, width] to the same."""
        if self.together:
            return swiglu(x, *self.weights)
        each = zip(x, *(weight.unbind() for weight in self.weights), strict=True)
        return torch.stack([swiglu(*one) for one in each])


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A Llama's feed-forward block; of several experts if there is a dimension for them."""
    return (silu(x @ gate) * (x @ up)) @ down


def tokens(job: Job, length: int, batch: int = 1) -> Tensor:
    """Activations [batch, length, width] that want a gradient."""
    return normal(batch, length, job.width).requires_grad_()


def normal(*shape: int) -> Tensor:
    """Random numbers in bf16."""
    return torch.randn(*shape, dtype=torch.bfloat16)


def trained(layer: nn.Module, x: Tensor) -> list[float]:
    """Quartiles of a forward and backward in milliseconds."""
    layer.to(x.device, torch.bfloat16)
    upstream = torch.randn_like(x)
    return timed(lambda: torch.autograd.backward(layer(x), upstream))


def attended(job: Job, queries: int, keys: int, causal: bool) -> list[float]:
    """The same of attention alone."""
    head = job.width // job.heads
    q, k, v = (
        normal(1, heads, length, head).requires_grad_()
        for heads, length in ((job.heads, queries), (job.kv_heads, keys), (job.kv_heads, keys))
    )
    upstream = torch.randn_like(q)

    def step() -> None:
        y = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        torch.autograd.backward(y, upstream)

    return timed(step)


def timed(step: Callable[[], object]) -> list[float]:
    """Quartiles in milliseconds; gradients add up, so that no call allocates them anew."""
    found = turns.quartiles([turns.take_turns({"step": step}, REPEATS)])["step"]
    return turns.milliseconds(found)
