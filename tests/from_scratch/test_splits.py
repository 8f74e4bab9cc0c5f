"""from_scratch of what splits a layer: tensor and context parallelism, and experts.

What each sends is compared with the table of the chapter *Beyond data parallelism*. That results
are those of one process which has all tokens and all weights, the milestones show.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import gelu, scaled_dot_product_attention

import minidist
from course.project.messages import recorded, sends
from from_scratch.context import attention, merge, pieces, split
from from_scratch.expert import Experts, balance
from from_scratch.tensor import SplitBlock, all_reduce, attend, reduce_scatter, same
from from_scratch.zero3 import ZeRO3
from minidist.comm.counted import CountedCall

RANKS = [1, 2, 3, 4]
TOKENS, WIDTH, HEAD, EXPERTS = 48, 24, 2, 12  # 1 to 4 ranks divide them
TOLERANCE = 1e-6


def rel(found: Tensor | None, right: Tensor | None) -> float:
    """The largest error over the largest number."""
    assert found is not None
    assert right is not None
    assert found.shape == right.shape
    return ((found - right).abs().max() / right.abs().max().clamp(min=1e-12)).item()


def ring() -> minidist.Counted:
    return minidist.Counted(minidist.Ours(algorithm="ring"))


# ---- tensor parallelism ----


class Layer(nn.Module):
    """The weights of attention and of a feed-forward block, without biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def blocks(self, comm: Any, sequence: bool = False) -> list[SplitBlock]:
        qkv = [self.q.weight, self.k.weight, self.v.weight]
        inner = partial(attend, HEAD)
        return [
            SplitBlock(qkv, inner, self.o.weight, comm, sequence),
            SplitBlock([self.up.weight], gelu, self.down.weight, comm, sequence),
        ]


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def beside_torch(sequence: bool) -> list[float]:
    """Output and gradients of the feed-forward block, ours against `parallelize_module`'s."""
    comm, layer = ring(), Layer()
    every, direction = drawn(TOKENS, WIDTH), drawn(TOKENS, WIDTH, seed=2)
    ours = layer.blocks(comm, sequence)[1]

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.Identity(), deepcopy(layer.up), deepcopy(layer.down)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]

    tokens: dict[str, Any] = {"input_layouts": Shard(0)} if sequence else {}
    whole: dict[str, Any] = {"output_layouts": Shard(0)} if sequence else {}
    plan = {"up": ColwiseParallel(**tokens), "down": RowwiseParallel(**whole)}
    if sequence:
        plan["norm"] = SequenceParallel(use_local_output=True)  # type: ignore[assignment]
    mesh = init_device_mesh("cpu", (comm.ranks,))
    theirs = parallelize_module(MLP(), mesh, plan)  # type: ignore[arg-type]

    inputs, outputs = [], []
    for model in (ours, theirs):
        own = every.chunk(comm.ranks)[comm.rank] if sequence else every
        inputs.append(own.clone().requires_grad_())
        outputs.append(model(inputs[-1]))
        outputs[-1].backward(direction.chunk(comm.ranks)[comm.rank] if sequence else direction)
    up, down = (each.weight.grad.to_local() for each in (theirs.up, theirs.down))  # type: ignore[union-attr, operator]
    return [
        rel(*outputs),
        rel(*(each.grad for each in inputs)),
        rel(ours.columns[0].grad, up),
        rel(ours.rows.grad, down),
    ]


@pytest.mark.claim("H1")
def test_they_are_torchs_parallelize_module() -> None:
    for of_rank in minidist.launch(lambda: [*map(beside_torch, (False, True))], 3):
        for errors in of_rank:
            assert max(errors) < TOLERANCE, errors


def tensor_traffic(sequence: bool) -> tuple[int, list[CountedCall]]:
    """What a rank sends for a layer in bf16, forward and backward."""
    comm, layer = ring(), Layer().bfloat16()
    own = TOKENS // comm.ranks if sequence else TOKENS
    x = torch.ones(own, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    for block in layer.blocks(comm, sequence):
        x = x + block(x)
    x.sum().backward()
    return comm.bytes_sent, comm.calls


def trained_shards(own_seed: bool) -> Tensor:
    """A rank's columns after some steps; its shards were drawn with a seed of its own, or not."""
    comm = ring()
    block = SplitBlock([torch.zeros(8, WIDTH)], gelu, torch.zeros(WIDTH, 8), comm)
    for place, weight in enumerate(block.parameters()):
        weight.data = drawn(*weight.shape, seed=10 * place + own_seed * comm.rank)
    optimizer = torch.optim.Adam(block.parameters(), 0.1)
    for step in range(5):
        x = drawn(16, WIDTH, seed=step)
        (block(x) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return block.columns[0].detach()


@pytest.mark.claim("H5")
def test_shards_that_are_drawn_from_one_seed_stay_copies() -> None:
    both = minidist.launch(lambda: [*map(trained_shards, (False, True))], 2)
    of_one_seed, of_two = zip(*both, strict=True)
    assert torch.equal(*of_one_seed)
    assert not torch.isclose(*of_two).any()


def stays_frozen() -> list[bool]:
    """Whether a block's rows, which were frozen, and its columns, a tensor, are trainable."""
    rows = nn.Parameter(torch.ones(4, 6), requires_grad=False)
    parameters = SplitBlock([torch.ones(6, 4)], gelu, rows, ring()).parameters()
    return [parameter.requires_grad for parameter in parameters]


def test_a_frozen_weight_stays_frozen() -> None:
    assert minidist.launch(stays_frozen, 2) == 2 * [[False, True]]


# ---- context parallelism ----


def bf16_errors(zigzag: bool, autocast: bool) -> list[tuple[float, float]]:
    """Errors of the output and of the gradients in bf16: ours, and those of torch's attention."""
    *qkv, direction = drawn(4, 2, 256, 32).bfloat16()

    def found(attend: Callable[..., Tensor], own: Callable[[Tensor], Tensor]) -> list[Tensor]:
        inputs = [own(each).detach().clone().requires_grad_() for each in qkv]
        with torch.autocast("cpu", enabled=autocast):
            out = attend(*inputs)
        out.backward(own(direction).to(out.dtype))
        return [out.detach(), *(each.grad for each in inputs)]  # type: ignore[misc]

    causal = partial(scaled_dot_product_attention, is_causal=True)
    ours = found(partial(attention, zigzag=zigzag), partial(split, zigzag=zigzag))
    theirs = found(causal, lambda each: each)
    autocast = False
    right = found(causal, lambda each: each.double())
    assert {each.dtype for each in ours} == {torch.bfloat16}
    return [
        (rel(mine.double(), split(best, zigzag)), rel(other.double(), best))
        for mine, other, best in zip(ours, theirs, right, strict=True)
    ]


def both_bf16_errors() -> list[tuple[float, float]]:
    return [*bf16_errors(zigzag=False, autocast=False), *bf16_errors(zigzag=True, autocast=True)]


@pytest.mark.parametrize("ranks", [1, 4])
def test_in_bf16_attention_is_as_exact_as_torchs(ranks: int) -> None:
    for errors in minidist.launch(both_bf16_errors, ranks):
        for ours, theirs in errors:
            assert ours < 3 * theirs, errors


def test_blocks_are_merged_where_exponentials_overflow_or_nothing_is_seen() -> None:
    scores, values = 1000 * drawn(5, 8).double(), drawn(8, 3, seed=2).double()

    def of(start: int, end: int) -> tuple[Tensor, Tensor]:
        part = scores[:, start:end]
        return part.softmax(-1) @ values[start:end], part.logsumexp(-1, keepdim=True)

    nothing = torch.zeros(5, 3).double(), torch.full((5, 1), -torch.inf).double()
    out, lse = merge(*merge(*nothing, *of(0, 3)), *of(3, 8))
    torch.testing.assert_close((out, lse), of(0, 8))


def context_traffic() -> tuple[list[int], list[int]]:
    """Bytes of the messages of forward and of backward, in bf16; all heads together are WIDTH."""
    shape = (WIDTH // HEAD, TOKENS, HEAD)
    qkv = [torch.ones(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    with recorded() as there:
        out = attention(*qkv)
    with recorded() as back:
        out.sum().backward()
    assert all([message.sends for message in batch] == [True, False] for batch in there + back)
    return sends(there), sends(back)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_zigzag_gives_each_rank_as_many_pairs_of_pieces(ranks: int) -> None:
    def pairs(rank: int, zigzag: bool) -> int:
        return sum(piece + 1 for piece in pieces(rank, ranks, zigzag))

    assert [pairs(rank, False) for rank in range(ranks)] == list(range(1, ranks + 1))
    assert [pairs(rank, True) for rank in range(ranks)] == ranks * [2 * ranks + 1]
    both = [piece for rank in range(ranks) for piece in pieces(rank, ranks, True)]
    assert sorted(both) == list(range(2 * ranks))


# ---- experts ----


def mixture() -> tuple[nn.Linear, list[nn.Module]]:
    torch.manual_seed(0)
    router = nn.Linear(WIDTH, EXPERTS, bias=False)
    return router, [
        nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH)) for _ in range(EXPERTS)
    ]


def expert_traffic(top_k: int) -> tuple[int, int]:
    """Bytes of counts and of tokens in bf16, where each expert gets equally many of a rank's."""
    logs = []

    def exchange(output: Tensor, input: Tensor, *sizes: Any) -> None:
        with minidist.record() as log:
            minidist.all_to_all_single(output, input, *sizes)
        logs.append((input.dtype, sum(message.nbytes for message in log)))

    router, experts = mixture()
    with torch.no_grad():  # token t chooses experts t and t + 1
        router.weight.zero_()[:, :EXPERTS] = torch.eye(EXPERTS)
    x = torch.zeros(TOKENS, WIDTH)
    for place in range(2):
        x[range(TOKENS), (torch.arange(TOKENS) + place) % EXPERTS] = 2 - place
    layer = Experts(router, experts, ring(), top_k, exchange=exchange).bfloat16()
    layer(x.bfloat16().requires_grad_()).sum().backward()
    tokens = [nbytes for dtype, nbytes in logs if dtype == torch.bfloat16]
    assert len(tokens) == len(logs) - 1 == 4
    return sum(nbytes for _, nbytes in logs) - sum(tokens), sum(tokens)


# ---- what they send ----


def traffic() -> tuple[Any, ...]:
    return (
        tensor_traffic(sequence=False),
        tensor_traffic(sequence=True),
        context_traffic(),
        [expert_traffic(top_k) for top_k in (1, 2)],
    )


@cache
def sent(ranks: int) -> list[tuple[Any, ...]]:
    """Every rank's traffic, each way's in turn."""
    return [*zip(*minidist.launch(traffic, ranks), strict=True)]


@pytest.mark.claim("H1")
@pytest.mark.parametrize("ranks", RANKS)
def test_tensor_parallelism_sends_what_the_map_says(ranks: int) -> None:
    for nbytes, calls in sent(ranks)[0]:
        assert nbytes == 16 * TOKENS * WIDTH * (ranks - 1) // ranks
        assert calls == 4 * [CountedCall("all_reduce", 2 * TOKENS * WIDTH)]


@pytest.mark.claim("H2")
@pytest.mark.parametrize("ranks", RANKS)
def test_sequence_parallelism_sends_the_same_bytes(ranks: int) -> None:
    for nbytes, calls in sent(ranks)[1]:
        assert nbytes == 16 * TOKENS * WIDTH * (ranks - 1) // ranks
        names = 4 * ["all_gather", "reduce_scatter"]
        assert calls == [CountedCall(name, 2 * TOKENS * WIDTH) for name in names]


@pytest.mark.claim("H3")
@pytest.mark.parametrize("ranks", RANKS)
def test_context_parallelism_sends_what_the_map_says(ranks: int) -> None:
    block = 2 * 2 * TOKENS * WIDTH  # keys and values of a rank's tokens
    for there, back in sent(ranks)[2]:
        assert there == (ranks - 1) * [block]
        assert back == 2 * (ranks - 1) * [block]
        assert sum(there + back) == 12 * TOKENS * WIDTH * (ranks - 1)


@pytest.mark.claim("H4")
@pytest.mark.parametrize("ranks", RANKS)
def test_experts_send_what_the_map_says(ranks: int) -> None:
    for of_rank in sent(ranks)[3]:
        for top_k, (counts, tokens) in enumerate(of_rank, 1):
            assert tokens == 8 * top_k * TOKENS * WIDTH * (ranks - 1) // ranks
            assert counts == 8 * EXPERTS * (ranks - 1) // ranks  # an int64 for each expert


# ---- how experts are kept busy ----


def test_the_balance_is_one_if_all_experts_are_equally_busy() -> None:
    even = torch.full((EXPERTS, EXPERTS), 1 / EXPERTS)
    chosen = torch.eye(EXPERTS)
    assert balance(even, chosen).item() == pytest.approx(1)
    collapsed = torch.zeros(EXPERTS, EXPERTS)
    collapsed[:, 3] = 1
    assert balance(collapsed, chosen).item() == pytest.approx(1)
    assert balance(collapsed, collapsed).item() == pytest.approx(EXPERTS)


def gradient_of_unused(weight: float) -> tuple[float, float]:
    """Of an expert without tokens, and how the router's bias towards it would change."""
    router, experts = mixture()
    router = nn.Linear(WIDTH, EXPERTS)
    with torch.no_grad():
        router.bias[3] = -9.0
    layer = Experts(router, experts, ring())
    (layer(drawn(TOKENS, WIDTH) / 10).square().mean() + weight * layer.balance).backward()
    assert layer.router.bias.grad is not None
    unused = sum(each.grad.abs().sum().item() for each in layer.experts[3].parameters())  # type: ignore[union-attr]
    return unused, layer.router.bias.grad[3].item()


@pytest.mark.claim("H6")
def test_the_balance_alone_moves_a_router_towards_an_expert_without_tokens() -> None:
    both = minidist.launch(lambda: [*map(gradient_of_unused, (0.0, 1.0))], 1)
    (unused, alone), (still_unused, towards) = both[0]
    assert unused == still_unused == 0
    assert towards < min(0, 2 * alone)  # a step down the gradient raises the bias


# ---- what is refused ----


def refusals(calls: dict[str, Callable[[Any], Any]]) -> dict[str, str]:
    found = {}
    for sentence, call in calls.items():
        try:
            call(ring())
            found[sentence] = "nothing"
        except ValueError as error:
            found[sentence] = str(error)
    return found


def block(comm: Any, outputs: int, inputs: int, sequence: bool = False) -> SplitBlock:
    weights = [torch.ones(outputs, 4)], gelu, torch.ones(4, inputs)
    return SplitBlock(*weights, comm, sequence)


def heads_of_4(comm: Any) -> Tensor:
    return SplitBlock(3 * [torch.ones(18, 4)], partial(attend, 4), torch.ones(4, 18), comm)(  # type: ignore[no-any-return]
        torch.ones(2, 4)
    )


def of_six(comm: Any, outputs: int = 6, **how: Any) -> Experts:
    return Experts(nn.Linear(4, outputs), [nn.Identity()] * 6, comm, **how)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "16 columns cannot be split evenly among 3 ranks": lambda comm: block(comm, 16, 16),
    "16 rows cannot be split evenly among 3 ranks": lambda comm: block(comm, 15, 16),
    "a rank's 6 columns are no whole number of heads of 4": heads_of_4,
    "inner: expected no weights, which would see a part of the hidden units":
        lambda comm: SplitBlock([torch.ones(6, 4)], nn.PReLU(), torch.ones(4, 6), comm),
    "rows: expected another weight than the columns, which are cut elsewhere":
        lambda comm: SplitBlock([whole := torch.ones(6, 6)], gelu, whole, comm),
    "8 tokens cannot be split evenly among 3 ranks":
        lambda comm: reduce_scatter(torch.ones(8, 4), comm),
    "8 tokens cannot be split into 3 equal pieces": lambda _: split(torch.ones(8, 4)),
    "9 tokens cannot be split into 6 equal pieces": lambda _: split(torch.ones(9, 4), zigzag=True),
    "2 experts cannot be spread evenly over 3 ranks":
        lambda comm: Experts(nn.Linear(4, 2), [nn.Identity()] * 2, comm),
    "4 experts cannot be spread evenly over 3 ranks":
        lambda comm: Experts(nn.Linear(4, 4), [nn.Identity()] * 4, comm),
    "Gloo's isend cannot send what is on meta: use NCCL, or a CPU":
        lambda _: attention(*torch.ones(3, 2, 4, device="meta")),
    "6 experts, and a router for 5": lambda comm: of_six(comm, outputs=5),
    "top_k: expected 1 to 6 experts, got 0": lambda comm: of_six(comm, top_k=0),
    "top_k: expected 1 to 6 experts, got 7": lambda comm: of_six(comm, top_k=7),
    "capacity: expected 1 token or more, or None, got 0": lambda comm: of_six(comm, capacity=0),
    "capacity: expected 1 token or more, or None, got -1": lambda comm: of_six(comm, capacity=-1),
    "capacity: expected 1 token or more, or None, got 1.5":
        lambda comm: of_six(comm, capacity=1.5),
    "ranks 0 and 1 share a weight of shape [4, 4]: put what shares it on one rank":
        lambda comm: Experts(nn.Linear(4, 6), [nn.Linear(4, 4)] * 6, comm),
    "x: expected [tokens, width], got [2, 3, 4]":
        lambda comm: of_six(comm)(torch.ones(2, 3, 4)),
}  # fmt: skip


def test_what_does_not_split_is_refused_in_a_sentence() -> None:
    for found in minidist.launch(refusals, 3, REFUSED):
        assert found == {sentence: sentence for sentence in REFUSED}


def penalized(out: Tensor, *leaves: Tensor) -> str:
    """The answer to a backward through these gradients, which are penalized."""
    gradients = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
    try:
        torch.autograd.backward([each.square().sum() for each in gradients])
    except RuntimeError as error:
        return str(error)
    return "nothing"


def penalties() -> list[str]:
    comm, x = ring(), drawn(2, 4).requires_grad_()
    sharded = ZeRO3(nn.Linear(4, 2), comm)
    return [
        *(penalized(block(comm, 4, 4, sequence)(x), x) for sequence in (False, True)),
        penalized(attention(x, x, x), x),
        penalized(sharded(x), sharded.shard),
    ]


def test_backward_through_backward_is_refused() -> None:
    for said in minidist.launch(penalties, 2):
        assert len(said) == 4
        assert all("differentiate twice" in each for each in said), said


def untouched() -> bool:
    x = torch.ones(3)
    all_reduce(x, ring())
    return x.tolist() == [1, 1, 1] and same(x, ring()).data_ptr() == x.data_ptr()


def test_an_all_reduce_inside_a_graph_leaves_its_input_as_it_was() -> None:
    assert minidist.launch(untouched, 2) == [True, True]
