"""Split layers and split sequences train as one process does that has all weights and tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from from_scratch.context import attention, split
from from_scratch.tensor import SplitBlock, all_reduce, attend
from minidist import Ours, launch

TOKENS, WIDE, HEAD, HIDDEN, RATE = 24, 24, 2, 36, 0.1  # 1 to 4 ranks divide them, in pieces too
DOUBLE, FLOAT, HALF = torch.float64, torch.float32, torch.bfloat16
Forward = Callable[..., Any]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def wrong(pairs: Sequence[tuple[str, Any, Any]], tolerance: float) -> str:
    """The first that is not what it should be; no gradient is a gradient of its own."""
    for what, found, wanted in pairs:
        if (found is None) != (wanted is None):
            return f"{what}: {found}, not {wanted}"
        if found is None:
            continue
        if found.shape != wanted.shape:
            return f"{what}: of shape {[*found.shape]}, not {[*wanted.shape]}"
        if not torch.allclose(found.double(), wanted.double(), tolerance, tolerance):
            return f"{what}: off by {(found.double() - wanted.double()).abs().max():.1e}"
    return ""


# ---- tensor parallelism ----


def gated(up: Tensor, gate: Tensor) -> Tensor:
    return gelu(up) * gate


def dropped(up: Tensor) -> Tensor:
    """All of a rank's hidden units at once."""
    return up * 0


class Block(NamedTuple):
    """A residual block and its input.

    Attributes:
        columns: outputs of the weights that are split by columns.
        inner: None for attention.
        tied: whether the first two weights are one.
        frozen: which weights are; the last one is split by rows.
        lead: dimensions between tokens and width.
        needs: whether the input needs a gradient.
    """

    columns: Sequence[int] = (HIDDEN,)
    inner: Any = gelu
    tied: bool = False
    frozen: Sequence[int] = ()
    tokens: int = TOKENS
    lead: Sequence[int] = ()
    wide: int = WIDE
    needs: bool = True
    turned: bool = False
    again: bool = False
    twice: bool = False
    dtype: torch.dtype = DOUBLE
    auto: bool = False


HEADS = (WIDE,) * 3
BLOCKS = {
    "feed forward": Block(),
    "attention": Block(HEADS, None),
    "gated": Block((HIDDEN, HIDDEN), gated),
    "batches": Block(HEADS, None, lead=(2, 3)),
    "queries and keys tied": Block(HEADS, None, tied=True),
    "gate tied": Block((HIDDEN, HIDDEN), gated, tied=True),
    "columns frozen": Block(frozen=[0]),
    "rows frozen": Block(frozen=[1]),
    "keys frozen": Block(HEADS, None, frozen=[1]),
    "all frozen": Block(frozen=[0, 1]),
    "data": Block(needs=False),
    "only rows train, on data": Block(frozen=[0], needs=False),
    "a hidden unit each": Block((12,), wide=1),
    "without activation": Block(inner=lambda x: x),
    "cut off": Block(inner=dropped),
    "transposed": Block(HEADS, None, lead=(2,), turned=True),
    "no tokens": Block(tokens=0),
    "a sample of none": Block(HEADS, None, lead=(0,)),
    "checkpointed": Block(HEADS, None, again=True),
    "twice in a row": Block(twice=True),
    "bfloat16": Block(dtype=HALF),
    "autocast": Block(dtype=FLOAT, auto=True),
    "attention under autocast": Block(HEADS, None, dtype=FLOAT, auto=True),
}


def weights(case: Block) -> list[nn.Parameter]:
    shapes = [*((n, case.wide) for n in case.columns), (case.wide, case.columns[0])]
    full = [
        nn.Parameter(drawn(n, *shape).to(case.dtype) / shape[1] ** 0.5, n not in case.frozen)
        for n, shape in enumerate(shapes)
    ]
    return [full[0], full[0], *full[2:]] if case.tied else full


def by_heads(*qkv: Tensor) -> Tensor:
    """Causal attention, a head at a time."""
    heads = zip(*(each.transpose(0, -2).split(HEAD, -1) for each in qkv), strict=True)
    out = [scaled_dot_product_attention(*each, is_causal=True) for each in heads]
    return torch.cat(out, -1).transpose(0, -2)


def unsplit(case: Block, full: Sequence[Tensor], x: Tensor) -> Any:
    *columns, rows = full
    return linear((case.inner or by_heads)(*[linear(x, each) for each in columns]), rows)


def turned(x: Tensor) -> Tensor:
    """The same numbers, as a transposed view."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def stack(case: Block, block: Forward, norm: nn.Module, x: Tensor) -> Any:
    """Normed and residual, under autocast or in a checkpoint if the case says so."""
    with torch.autocast("cpu", HALF, enabled=case.auto):
        for _ in range(1 + case.twice):
            given = turned(norm(x)) if case.turned else norm(x)
            inner = checkpoint(block, given, use_reentrant=False) if case.again else block(given)
            x = x + inner
    return x


def block_off(case: Block, sequence: bool) -> str:
    """What is not as in one process, on this rank, which goes on: others may wait for it."""
    comm, full = Ours(check=False), weights(case)
    rank, ranks = comm.rank, comm.ranks
    *columns, rows = weights(case)
    block = SplitBlock(columns, case.inner or partial(attend, HEAD), rows, comm, sequence)
    norms = [nn.LayerNorm(case.wide).to(case.dtype) for _ in range(2)]
    if sequence:  # on each rank they see its tokens only, as the chapter says
        for weight in norms[0].parameters():
            weight.register_hook(partial(all_reduce, comm=comm))
    optimizers = (
        SGD([*block.parameters(), *norms[0].parameters()], RATE, 0.9),
        SGD([*{id(each): each for each in full}.values(), *norms[1].parameters()], RATE, 0.9),
    )
    first, tolerance = "", 1e-9 if case.dtype == DOUBLE else 5e-2

    def part(each: Tensor) -> Tensor:
        return each.chunk(ranks)[rank] if sequence and len(each) else each

    for step, action in enumerate("BSBEBSB" if case.dtype == DOUBLE else "BEB"):
        if action == "S":
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            continue
        every, direction = drawn(step, 2, case.tokens, *case.lead, case.wide).to(case.dtype)
        direction = direction / TOKENS
        if case.turned:
            every, direction = turned(every), turned(direction)
        own, x = part(every).detach().clone(memory_format=torch.preserve_format), every
        for each in (own, x):
            each.requires_grad_(case.needs)
        with torch.set_grad_enabled(action == "B"):
            mine = stack(case, block, norms[0], own)
            right = stack(case, partial(unsplit, case, full), norms[1], x)
        pairs = [("output", mine, part(right))]
        if action == "B":
            torch.autograd.backward(mine, part(direction).to(mine.dtype))
            torch.autograd.backward(right, direction.to(right.dtype))
            pairs += [
                ("gradient of the input", own.grad, x.grad if x.grad is None else part(x.grad))
            ]
        cut = [
            *((mine, whole, 0) for mine, whole in zip(block.columns, full[:-1], strict=True)),
            (block.rows, full[-1], 1),
        ]
        for number, (mine, whole, dim) in enumerate(cut):
            share = partial(torch.chunk, chunks=ranks, dim=dim)
            memory = mine.untyped_storage().nbytes()
            pairs.append((f"bytes of weight {number}", *torch.tensor([memory, mine.nbytes])))
            pairs.append((f"weight {number}", mine, share(whole)[rank]))
            gradient = None if whole.grad is None else share(whole.grad)[rank]
            pairs.append((f"gradient {number}", mine.grad, gradient))
        both = [each.parameters() for each in norms]
        pairs += [("norm", *each) for each in zip(*both, strict=True)]
        first = first or ((text := wrong(pairs, tolerance)) and f"{text}, in step {step}")
    return first


# ---- context parallelism ----


class Tokens(NamedTuple):
    """Queries, keys and values.

    Attributes:
        needs: which of them need a gradient.
        each: tokens in a piece.
        one: whether one tensor is all three.
        turned: whether they are transposed views.
        summed: whether the loss is a sum, whose gradient is one number, expanded.
    """

    needs: str = "qkv"
    lead: Sequence[int] = (2, 3)
    each: int = 3
    wide: int = 4
    one: bool = False
    turned: bool = False
    summed: bool = False
    scale: float = 1
    again: bool = False
    twice: bool = False
    dtype: torch.dtype = DOUBLE
    auto: bool = False


SEQUENCES = {
    "heads": Tokens(),
    "one head": Tokens(lead=()),
    "heads of one": Tokens(wide=1),
    "a token to a piece": Tokens(each=1),
    "no samples": Tokens(lead=(0, 2)),
    **{f"only {needs}": Tokens(needs) for needs in ("q", "k", "v", "qk", "kv")},
    "no gradient": Tokens(""),
    "one tensor": Tokens(one=True),
    "transposed": Tokens(turned=True),
    "summed": Tokens(summed=True),
    "large scores": Tokens(scale=2000),
    "checkpointed": Tokens(again=True),
    "twice in a row": Tokens(twice=True),
    "float": Tokens(dtype=FLOAT),
    "bfloat16": Tokens(dtype=HALF),
    "autocast": Tokens(dtype=FLOAT, auto=True),
}


def attended(case: Tokens, attend: Forward, inputs: list[Tensor]) -> Any:
    with torch.autocast("cpu", HALF, enabled=case.auto):
        q, k, v = inputs
        for _ in range(1 + case.twice):
            q = checkpoint(attend, q, k, v, use_reentrant=False) if case.again else attend(q, k, v)
    return q


def sequence_off(case: Tokens, zigzag: bool) -> str:
    """What is not as in one process, on this rank."""
    pieces = dist.get_world_size() * (1 + zigzag)
    shape = 4, *case.lead, case.each * pieces, case.wide
    part = partial(split, zigzag=zigzag)
    tolerance = 5e-2 if case.auto else {DOUBLE: 1e-9, FLOAT: 1e-5, HALF: 5e-2}[case.dtype]
    causal = partial(scaled_dot_product_attention, is_causal=True)
    own, full = list[Tensor](), list[Tensor]()
    *qkv, direction = drawn(0, *shape).to(case.dtype)
    qkv[0] *= case.scale
    for name, each in zip("qkv", qkv, strict=True):
        for inputs, given in ((own, part(each)), (full, each)):
            given = given.mT.contiguous().mT if case.turned else given.clone()
            inputs.append(given.detach().requires_grad_(name in case.needs))
    if case.one:
        own, full = own[:1] * 3, full[:1] * 3
    pairs = list[tuple[str, Any, Any]]()
    for action in "BEB":  # gradients add up
        with torch.set_grad_enabled(action == "B"):
            found = attended(case, partial(attention, zigzag=zigzag), own)
            right = attended(case, causal, full)
        pairs.append(("output", found, part(right)))
        if action == "B" and case.needs:
            if case.summed:
                torch.autograd.backward([found.sum(), right.sum()])
            else:
                right.backward(direction.to(right.dtype))
                found.backward(part(direction).to(found.dtype))
    for name, mine, every in zip("qkv", own, full, strict=True):
        gradient = None if every.grad is None else part(every.grad)
        pairs.append((f"gradient of {name}", mine.grad, gradient))
    return wrong(pairs, tolerance)


# ---- all of them ----


def all_off() -> dict[str, str]:
    torch.set_num_threads(1)
    found = {}
    for both in (False, True):
        for name, block in BLOCKS.items():
            found[f"{name}, by tokens between: {both}"] = block_off(block, both)
        for name, sequence in SEQUENCES.items():
            found[f"{name}, zigzag: {both}"] = sequence_off(sequence, both)
    return {name: text for name, text in found.items() if text}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_split_layers_and_sequences_are_those_of_one_process(ranks: int) -> None:
    assert launch(all_off, ranks, timeout=200) == [{}] * ranks
