"""Scenarios of the milestones after FSDP: layers, their width, tokens or experts are split."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    cross_entropy,
    gelu,
    linear,
    mse_loss,
    one_hot,
    scaled_dot_product_attention,
)
from torch.optim import SGD

from course.project.models import Drawn, mlp
from course.project.scenarios import RATE, STEPS, Cases, Found, Tally, step_all
from minidist.schedule.pipeline import Order, gpipe, interleaved, one_f_one_b, sequence, stages_of

DEEP = 2  # modules of a pipeline's stage


def pipeline(
    kind: Any, comm: Tally, drawn: Drawn, order: Callable[[int], Order], ignores: bool = False
) -> Iterator[Found]:
    """Two batches, whose gradients add up; micro-batch 0 may have no labels.

    The batch is on the first stage's rank, its labels are on the last one's.
    """
    torch.manual_seed(3)
    works, stages = sequence(order(comm.ranks)), stages_of(order(comm.ranks))
    micro, here = 1 + max(work.micro for work in works), range(comm.rank, stages, comm.ranks)
    samples, width = drawn.size("samples of a micro-batch", 1, 3), drawn.size("width", 2, 5)
    net = mlp(*[width] * (1 + stages))
    alone, seen = deepcopy(net), list[str]()
    for stage in here:
        net[(stage + 1) * DEEP - 1].register_forward_hook(partial(_seen, seen, stage))
    own = kind(net, stages, drawn.numbers(0, samples, width))
    parts = nn.ModuleList(alone[s * DEEP : (s + 1) * DEEP] for s in here)
    loss_of: Callable[..., Any] = mse_loss
    before = torch.zeros(())
    for step in range(STEPS):
        x, y = drawn.numbers(step, 2, micro * samples, width)
        elsewhere = torch.full_like(y, torch.nan)
        if ignores:
            y, loss_of = y.argmax(-1).where(torch.arange(len(y)) % 5 > 0, -100), cross_entropy
            y[:samples] = -100
            elsewhere = ((y + 1) % width).where(y >= 0, -100)  # wrong ones
        given = x if 0 in here else torch.full_like(x, torch.nan)
        loss = own.step(works, given, y if stages - 1 in here else elsewhere, loss_of)
        torch.autograd.backward(whole := loss_of(alone(x), y))
        if stages - 1 in here:
            yield Found(f"the loss of batch {step + 1}", loss, whole)
        right = _gradients(parts.parameters())
        slips = {"They are those of this batch alone: gradients add up.": right - before}
        what = f"the vector of gradients of a rank's stages after batch {step + 1}"
        yield Found(what, _gradients(own.parameters()), right, slips if step else {})
        before = right.clone()
        if not ignores:  # what has no labels needs no backward
            wanted = " ".join(f"{each.kind}{each.stage}" for each in works if each.stage in here)
            what = f"this rank's order of work in batch {step + 1}, each with its stage,"
            yield Found(what, " ".join(seen), wanted)
        seen.clear()


def _seen(seen: list[str], stage: int, _: object, __: object, output: Tensor) -> None:
    """A forward hook of a stage: note its forward, and later its backward."""
    seen.append(f"F{stage}")
    if output.requires_grad:
        output.register_hook(lambda _: seen.append(f"B{stage}"))  # type: ignore[no-untyped-call]


PIPELINES: Cases = {
    "GPipe": (lambda ranks: gpipe(ranks, 4),),
    "GPipe, labels ignored": (lambda ranks: gpipe(ranks, 4), True),
    "1F1B": (lambda ranks: one_f_one_b(ranks, 5),),
    "1F1B of one micro-batch": (lambda ranks: one_f_one_b(ranks, 1),),
    "interleaved 1F1B": (lambda ranks: interleaved(ranks, 2 * ranks, 2),),
}


def tensor(file: Any, comm: Tally, drawn: Drawn, sequence: bool) -> Iterator[Found]:
    """Attention and a feed-forward block, trained."""
    head, batch = drawn.size("width of a head", 2, 4), drawn.size("sequences", 1, 3)
    heads, hidden = (
        comm.ranks * drawn.size(f"{each} per rank", 1, 4) for each in ("heads", "hidden units")
    )
    tokens, width = comm.ranks * drawn.size("tokens per rank", 2, 4), head * heads
    shapes = [(width, width)] * 4 + [(hidden, width), (width, hidden)]
    full = [nn.Parameter(drawn.numbers(n, *shape) / width**0.5) for n, shape in enumerate(shapes)]
    *qkv, o, up, down = (weight.detach().clone() for weight in full)
    attention = file.SplitBlock(qkv, partial(file.attend, head), o, comm, sequence)
    feed = file.SplitBlock([up], gelu, down, comm, sequence)
    first = [weight.detach().clone() for weight in full]

    def part(x: Any) -> Any:
        return x.chunk(comm.ranks)[comm.rank] if sequence else x

    optimizers = SGD([*attention.parameters(), *feed.parameters()], RATE), SGD(full, RATE)
    for step in range(STEPS):
        every, direction = drawn.numbers(10 + step, 2, tokens, batch, width)
        x, own = every.clone().requires_grad_(), part(every).clone().requires_grad_()
        mine = own + attention(own)
        mine, right = mine + feed(mine), unsplit(x, head, full)
        slips = {told: part(each) for told, each in missplit(x, head, full, first, comm).items()}
        yield Found(f"the output of step {step + 1}", mine, part(right), slips)
        torch.autograd.backward([mine, right], [part(direction), direction])
        yield Found(f"the gradient of the input in step {step + 1}", own.grad, part(x.grad))
        step_all(optimizers)


def unsplit(x: Tensor, head: int, weights: Sequence[Tensor], causal: bool = True) -> Tensor:
    """Both blocks by one process; heads have so many columns."""
    *qkv, o, up, down = weights
    q, k, v = (linear(x, w).view(*x.shape[:2], -1, head).movedim(0, 2) for w in qkv)
    attended = scaled_dot_product_attention(q, k, v, is_causal=causal)
    x = x + linear(attended.movedim(2, 0).flatten(2), o)
    return x + linear(gelu(linear(x, up)), down)


@torch.no_grad()
def missplit(
    x: Tensor, head: int, full: Sequence[Tensor], first: Sequence[Tensor], comm: Tally
) -> dict[str, Tensor]:
    """The outputs by sentences about mistakes; `first` are the weights before step 1."""
    slips = {
        "It sees later tokens.": unsplit(x, head, full, causal=False),
        "It is that of the weights before step 1: they are not trained.": unsplit(x, head, first),
    }
    if comm.ranks > 1:
        *qkv, o, up, down = full
        own = [torch.zeros_like(each) for each in (o, down)]
        for each, weight in zip(own, (o, down), strict=True):
            each.chunk(comm.ranks, 1)[comm.rank].copy_(weight.chunk(comm.ranks, 1)[comm.rank])
        told = "It has what this rank's part of the weights adds, and not the sum over the ranks."
        slips[told] = unsplit(x, head, [*qkv, own[0], up, own[1]])
        told = "What the ranks' parts add is averaged, and not summed."
        slips[told] = unsplit(x, head, [*qkv, o / comm.ranks, up, down / comm.ranks])
    return slips


SEQUENCES: Cases = {"full sequences": (False,), "split sequences": (True,)}


def context(
    file: Any, comm: Tally, drawn: Drawn, zigzag: bool, scale: float = 1
) -> Iterator[Found]:
    """Attention; where scores are large, of one head of one sequence.

    A rank is given its own tokens, and NaN for all others.
    """
    pieces = [comm.rank, 2 * comm.ranks - 1 - comm.rank] if zigzag else [comm.rank]
    lead = [drawn.size("sequences", 1, 2), drawn.size("heads", 2, 3)] if scale == 1 else []
    tokens = 2 * comm.ranks * drawn.size("tokens of half a rank", 1, 3)
    width = drawn.size("width of a head", 2, 4)
    *qkv, direction = drawn.numbers(0, 4, *lead, tokens, width)
    qkv[0] *= scale

    def chunks(x: Any) -> list[Tensor]:
        every = x.chunk(comm.ranks * len(pieces), -2)
        return [every[piece] for piece in pieces]

    def part(x: Any) -> Tensor:
        return torch.cat(chunks(x), -2)

    def alone(x: Tensor) -> Tensor:
        own = torch.full_like(x, torch.nan)
        for place, piece in zip(chunks(own), chunks(x), strict=True):
            place.copy_(piece)
        return own

    own = [file.split(alone(each), zigzag) for each in qkv]
    yield Found("what split returns of a sequence with NaN for other ranks", own[0], part(qkv[0]))
    own, full = ([each.clone().requires_grad_() for each in them] for them in (own, qkv))
    q, k, v = full
    right = scaled_dot_product_attention(q, k, v, is_causal=True)
    mine = file.attention(*own, zigzag)
    slips = {
        "It sees later tokens.": part(scaled_dot_product_attention(q, k, v)),
        "The scores are not divided by the root of a head's width.": part(
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=1)
        ),
    }
    yield Found("the output", mine, part(right), slips)
    own_queries = torch.autograd.grad(part(right), full, part(direction), retain_graph=True)
    torch.autograd.backward([mine, right], [part(direction), direction])
    for name, each, every, ours in zip("qkv", own, full, own_queries, strict=True):
        slips = {"It has what this rank's queries add, and not what other ranks' do.": part(ours)}
        yield Found(f"the gradient of {name}", each.grad, part(every.grad), slips)


PIECES: Cases = {"pieces in order": (False,), "zigzag": (True,), "large scores": (True, 2000)}


def expert(
    kind: Any, comm: Tally, drawn: Drawn, top_k: int, capacity: int | None = None
) -> Iterator[Found]:
    """A layer, trained; each rank has tokens of its own, and its router learns from them alone."""
    torch.manual_seed(3)
    tokens, width = drawn.size("tokens", 6, 9), drawn.size("width", 2, 5)
    count, hidden = comm.ranks * drawn.size("experts per rank", 2, 3), drawn.size("hidden", 1, 5)
    router = nn.Linear(width, count).double()
    experts = nn.ModuleList(mlp(width, hidden, width) for _ in range(count))
    routers, every = nn.ModuleList(deepcopy(router) for _ in range(comm.ranks)), deepcopy(experts)
    router.weight.data *= 1 + comm.rank  # rank 0's must win
    own_router, averaged = deepcopy(router), deepcopy(experts)
    layer = kind(router, experts, comm, top_k, capacity, comm.exchange)
    one = partial(mixed, top_k=top_k, room=capacity or tokens)
    trained = [*routers.parameters(), *every.parameters()]
    optimizers = [SGD(each, RATE) for each in (layer.parameters(), trained, averaged.parameters())]
    for step in range(STEPS):
        xs = [drawn.numbers(99 * step + r, tokens, width) for r in range(comm.ranks)]
        xs = [each.requires_grad_() for each in xs]
        x, own = xs[comm.rank], xs[comm.rank].detach().clone().requires_grad_()
        mine, rights = layer(own), [one(*each, every) for each in zip(xs, routers, strict=True)]
        right, even = rights[comm.rank]
        slips = misweighted(own, routers[comm.rank], every, one)
        if step:
            told = f"The gradients of the experts are divided by {comm.ranks}: they are sums."
            slips[told] = one(own, routers[comm.rank], averaged)[0]
        else:
            told = "It is that of this rank's own router: send rank 0's to all."
            slips[told] = one(own, own_router, every)[0]
            slips |= misplaced(mine, xs, routers, every, comm) if top_k == 1 else {}
        yield Found(f"the output of step {step + 1}", mine, right, slips)
        level = getattr(layer, "balance", None)
        yield Found(f"`balance` of the layer after the forward of step {step + 1}", level, even)
        slips = unreached(x, routers[comm.rank], every, one, comm.ranks)
        both = [(mine, level), *rights]
        torch.autograd.backward([out.square().mean() + level for out, level in both])
        what = f"the gradient of the tokens in step {step + 1}"
        yield Found(what, own.grad, x.grad, slips)
        for other, each in zip(averaged.parameters(), every.parameters(), strict=True):
            other.grad = each.grad / comm.ranks if each.grad is not None else None
        step_all(optimizers)


def mixed(
    x: Tensor,
    router: Callable[[Tensor], Tensor],
    experts: Sequence[Callable[[Tensor], Tensor]] | nn.ModuleList,
    top_k: int,
    room: int,
    weigh: Callable[[Tensor], Tensor] = lambda chosen: chosen,
) -> tuple[Tensor, Tensor]:
    """The output for some tokens by one process, and the loss that keeps experts equally busy."""
    probability, taken, rows = router(x).softmax(-1), [0] * len(experts), []
    chosen, choices = probability.topk(top_k)
    for token, gate, numbers in zip(x, weigh(chosen), choices.tolist(), strict=True):
        rows.append(torch.zeros_like(token))
        for place, number in enumerate(numbers):
            taken[number] += 1
            if taken[number] <= room:
                rows[-1] = rows[-1] + gate[place] * experts[number](token)
    share = one_hot(choices.flatten(), len(experts)).double().mean(0)
    return torch.stack(rows), len(experts) * (share * probability.mean(0)).sum()


@torch.no_grad()
def misweighted(x: Tensor, router: Any, experts: Any, one: Any) -> dict[str, Tensor]:
    """The outputs of a mixture by sentences about mistakes with weights and capacity."""
    missing = "The router's weight is missing in it"
    if one.keywords["top_k"] == 1:
        missing += ", or divided by the sum of a token's weights, which for top-1 is itself"
    summed = "A token's weights are divided by their sum: take the router's probabilities as they "
    return {
        f"{missing}.": one(x, router, experts, weigh=torch.ones_like)[0],
        f"{summed}are.": one(x, router, experts, weigh=lambda w: w / w.sum(-1, keepdim=True))[0],
        "It keeps tokens beyond the capacity.": one(x, router, experts, room=len(x))[0],
        "Of an expert's tokens the last are kept: the first come first.":
            one(x.flip(0), router, experts)[0].flip(0),
    }  # fmt: skip


@torch.no_grad()
def misplaced(
    mine: Any, xs: Sequence[Tensor], routers: Any, experts: Any, comm: Tally
) -> dict[str, Tensor]:
    """The output of a top-1 mixture nearest to a rank's, by what has become of its tokens."""
    rank, per = comm.rank, len(experts) // comm.ranks
    tops = [router(x).softmax(-1).max(-1) for x, router in zip(xs, routers, strict=True)]
    every = torch.stack([torch.stack([each(x) for each in experts], 1) for x in xs])
    results = torch.stack(
        [out[range(len(out)), top.indices] for out, top in zip(every, tops, strict=True)]
    )
    gate, choice, here = tops[rank].values[:, None], tops[rank].indices, results[rank]
    if not isinstance(mine, Tensor) or mine.shape != here.shape:
        return {}
    whole, expert = nearest(mine, gate[:, None] * every[rank])
    token = int((expert != choice).int().argmax())
    told = (
        f"Token {token} chose expert {choice[token]} and has the result of expert {expert[token]}: "
        f"of {per} per rank, expert e is on rank e // {per}, as number e % {per} there."
    )
    return {
        "Its rows are those of other tokens: add each where its token was.":
            nearest(mine, (gate * here).expand(len(here), -1, -1))[0],
        "An expert was given the row of another token: rows, too, have to stand in the order of "
        "the experts that take them.":
            nearest(mine, gate[:, None] * every.flatten(0, 1)[:, choice].movedim(1, 0))[0],
        "A token's weight is that of another: sort the weights as the rows.":
            nearest(mine, here[:, None] * gate)[0],
        "A token has the result of another: before a rank sends results back, they have to stand "
        "in the order in which the tokens came.":
            nearest(mine, gate[:, None] * results.flatten(0, 1))[0],
        told: whole,
    }  # fmt: skip


def nearest(rows: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the candidate, of [rows, candidates, width], that is nearest, and its number."""
    number = (candidates - rows[:, None]).square().sum(-1).argmin(1)
    return candidates[range(len(rows)), number], number


def unreached(x: Tensor, router: Any, experts: Any, one: Any, ranks: int) -> dict[str, Tensor]:
    """The gradients of tokens by sentences about what no gradient, or a part, has come through."""
    out, level = one(x, router, experts)
    constant = [lambda token, each=each: each(token).detach() for each in experts]
    ways = {
        "No gradient has come back from the experts: tokens travel in an autograd function, whose "
        "backward sends gradients the other way.": (one(x, router, constant)[0], level),
        "No gradient has come through the weights: do not detach them.":
            (one(x, router, experts, weigh=Tensor.detach)[0], level),
        "No gradient has come through `balance`: do not detach its probabilities.": (out, 0),
    }  # fmt: skip
    right, *made = (
        torch.autograd.grad(out.square().mean() + level, x, retain_graph=True)[0]
        for out, level in [(out, level), *ways.values()]
    )
    scaled = {
        f"What comes back from the experts is divided by {ranks}{often}: send it as it is.":
            made[0] + (right - made[0]) / ranks**times
        for times, often in ({1: "", 2: ", each of the two ways"} if ranks > 1 else {}).items()
    }  # fmt: skip
    return dict(zip(ways, made, strict=True)) | scaled


CHOICES: Cases = {"top-1": (1,), "top-2": (2,), "top-2 with capacity 3": (2, 3)}


def _gradients(parameters: Iterable[nn.Parameter]) -> Tensor:
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.cat([torch.zeros(0).double(), *(grad.flatten() for grad in grads)])
