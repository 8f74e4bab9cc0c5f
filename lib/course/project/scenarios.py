"""The milestones' scenarios: what the reader's code must compute on every rank.

A scenario runs it beside one process with the whole batch and all weights, and yields what both
find. Weights show in what comes out once they have been trained, so no scenario needs to know what
a reader calls them.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import (
    cross_entropy,
    gelu,
    linear,
    mse_loss,
    one_hot,
    scaled_dot_product_attention,
)
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW, Optimizer

import minidist
from course.ask.verdict import many
from course.project.models import ROWS, Loss, draw, mlp
from course.project.trained import LEARNING_RATE, Make, Train, Trained
from from_scratch.expert import balance
from minidist.collectives.call import record
from minidist.comm.counted import Counted
from minidist.schedule.pipeline import Order, gpipe, interleaved, one_f_one_b, sequence, stages_of

STEPS, RATE = 2, 0.1
CAP = 2e-4  # MiB: several buckets of each model


class Tally(Counted):
    """A comm that counts an all-to-all, too."""

    def exchange(self, *args: Any, **options: Any) -> None:
        """As torch's all_to_all_single."""
        with record() as log:
            self._logs.append(log)
            minidist.all_to_all_single(*args, **options)


Size = Callable[[int, int], int]  # draws a size from the first number to the last
Found = Iterator[tuple[str, Any, Any]]  # what, as the reader's code finds it, as one process does
Scenario = Callable[..., Found]  # scenario(the reader's class or file, comm, size, ...)
Cases = dict[str, tuple[Any, ...]]  # name → further arguments of a scenario


def ring(file: Any, comm: Tally, size: Size, collective: str) -> Found:
    """A collective; its tensor has equal chunks, unless it is an all-reduce of any size."""
    ranks, chunk = comm.ranks, size(18, 200)
    if collective == "any size":
        for numel in (0, 1, ranks - 1, ranks, ranks + 1, 17, chunk):
            every = draw(numel, ranks, numel)
            own = every[comm.rank].clone()
            file.all_reduce(own)
            yield f"the sum of {many(numel, 'element')}", own, every.sum(0)
        return
    every = draw(0, ranks, ranks, chunk)
    own, part, right = every[comm.rank].clone(), torch.empty(chunk).double(), every.sum(0)
    if collective == "all_reduce":
        file.all_reduce(own.view(-1))
        yield "the sum", own, right
    elif collective == "reduce_scatter":
        file.reduce_scatter(part, own)
        yield "this rank's part of the sum", part, right[comm.rank]
        yield "the input afterwards", own, every[comm.rank]
    else:
        part.copy_(own[0])
        file.all_gather(own, part)
        yield "what is gathered", own, every[:, 0]


COLLECTIVES: Cases = {name: (name,) for name in ("all_reduce", "reduce_scatter", "all_gather")}
SIZES: Cases = {"all_reduce of any size": ("any size",)}


def training(
    kind: Any,
    comm: Tally,
    size: Size,
    train: Train,
    build: Callable[[], nn.Module] | None,
    loss: Loss,
    optimizer: Make = AdamW,
) -> Found:
    """Four steps from rank 0's weights, each rank with its rows. None builds drawn layers."""
    torch.manual_seed(3)
    net = build() if build else mlp(5, *(size(1, 11) for _ in range(3)), 2)
    alone, share = deepcopy(net), ROWS // comm.ranks
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.add_(comm.rank)  # rank 0's must win
    trained = train(kind, net, comm, CAP, optimizer)
    right = Trained(alone, optimizer(alone.parameters(), lr=LEARNING_RATE))
    for step in range(4):
        own = loss(trained.model, step, slice(comm.rank * share, (comm.rank + 1) * share))
        trained.step(own)
        whole = loss(alone, step, slice(None))
        right.step(whole)
        mean = own.detach() / comm.ranks
        dist.all_reduce(mean)
        yield f"the mean loss of all ranks in step {step + 1}", mean, whole
    for name, weight in trained.weights().items():
        yield f"{name} after all steps", weight, alone.get_parameter(name)
    for name, buffer in net.named_buffers():
        yield name, buffer, alone.get_buffer(name)


def pipeline(
    kind: Any, comm: Tally, size: Size, order: Callable[[int], Order], ignores: bool = False
) -> Found:
    """Two batches, whose gradients add up; micro-batch 0 may have no labels."""
    torch.manual_seed(3)
    works, stages = sequence(order(comm.ranks)), stages_of(order(comm.ranks))
    micro, samples, width = 1 + max(work.micro for work in works), size(1, 3), size(2, 5)
    net, deep = mlp(*[width] * (1 + stages)), 2  # modules of a stage
    alone = deepcopy(net)
    own = kind(net, stages, draw(0, samples, width))
    here = range(comm.rank, stages, comm.ranks)
    parts = nn.ModuleList(alone[s * deep : (s + 1) * deep] for s in here)
    loss_of: Callable[..., Any] = mse_loss
    for step in range(STEPS):
        x, y = draw(step, 2, micro * samples, width)
        if ignores:
            y, loss_of = y.argmax(-1).where(torch.arange(len(y)) % 5 > 0, -100), cross_entropy
            y[:samples] = -100
        loss, whole = own.step(works, x, y, loss_of), loss_of(alone(x), y)
        torch.autograd.backward(whole)
        if stages - 1 in here:
            yield f"the loss of batch {step + 1}", loss, whole
        what = f"the vector of gradients of a rank's stages after batch {step + 1}"
        yield what, _gradients(own.parameters()), _gradients(parts.parameters())


PIPELINES: Cases = {
    "GPipe": (lambda ranks: gpipe(ranks, 4),),
    "GPipe, labels ignored": (lambda ranks: gpipe(ranks, 4), True),
    "1F1B": (lambda ranks: one_f_one_b(ranks, 5),),
    "1F1B of one micro-batch": (lambda ranks: one_f_one_b(ranks, 1),),
    "interleaved 1F1B": (lambda ranks: interleaved(ranks, 2 * ranks, 2),),
}


def tensor(file: Any, comm: Tally, size: Size, sequence: bool) -> Found:
    """Attention and a feed-forward block, trained."""
    head, heads, batch = size(2, 4), comm.ranks * size(1, 2), size(1, 3)
    width, hidden, tokens = head * heads, comm.ranks * size(1, 4), comm.ranks * size(2, 4)
    shapes = [(width, width)] * 4 + [(hidden, width), (width, hidden)]
    full = [nn.Parameter(draw(n, *shape) / width**0.5) for n, shape in enumerate(shapes)]
    *qkv, o, up, down = (weight.detach().clone() for weight in full)
    attention = file.SplitBlock(qkv, partial(file.attend, head), o, comm, sequence)
    feed = file.SplitBlock([up], gelu, down, comm, sequence)

    def one(x: Tensor) -> Tensor:
        *qkv, o, up, down = full
        q, k, v = (linear(x, w).view(tokens, batch, heads, head).movedim(0, 2) for w in qkv)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(attended.movedim(2, 0).flatten(2), o)
        return x + linear(gelu(linear(x, up)), down)

    def part(x: Any) -> Any:
        return x.chunk(comm.ranks)[comm.rank] if sequence else x

    optimizers = SGD([*attention.parameters(), *feed.parameters()], RATE), SGD(full, RATE)
    for step in range(STEPS):
        every, direction = draw(step, 2, tokens, batch, width)
        x, own = every.clone().requires_grad_(), part(every).clone().requires_grad_()
        mine = own + attention(own)
        mine, right = mine + feed(mine), one(x)
        yield f"the output of step {step + 1}", mine, part(right)
        torch.autograd.backward([mine, right], [part(direction), direction])
        yield f"the gradient of the input in step {step + 1}", own.grad, part(x.grad)
        _step(optimizers)


SEQUENCES: Cases = {"full sequences": (False,), "split sequences": (True,)}


def context(file: Any, comm: Tally, size: Size, zigzag: bool, scale: float = 1) -> Found:
    """Attention; where scores are large, of one head of one sequence."""
    pieces = [comm.rank, 2 * comm.ranks - 1 - comm.rank] if zigzag else [comm.rank]
    lead = [size(1, 2), size(2, 3)] if scale == 1 else []
    *qkv, direction = draw(0, 4, *lead, 2 * comm.ranks * size(1, 3), size(2, 4))
    qkv[0] *= scale

    def part(x: Any) -> Tensor:
        chunks = x.chunk(comm.ranks * len(pieces), -2)
        return torch.cat([chunks[piece] for piece in pieces], -2)

    own = [file.split(each, zigzag) for each in qkv]
    yield "the part that split returns", own[0], part(qkv[0])
    own, full = ([each.clone().requires_grad_() for each in them] for them in (own, qkv))
    q, k, v = full
    right = scaled_dot_product_attention(q, k, v, is_causal=True)
    mine = file.attention(*own, zigzag)
    yield "the output", mine, part(right)
    torch.autograd.backward([mine, right], [part(direction), direction])
    for name, each, every in zip("qkv", own, full, strict=True):
        yield f"the gradient of {name}", each.grad, part(every.grad)


PIECES: Cases = {"pieces in order": (False,), "zigzag": (True,), "large scores": (True, 2000)}


def expert(kind: Any, comm: Tally, size: Size, top_k: int, capacity: int | None = None) -> Found:
    """A layer, trained; each rank has tokens of its own, and its router learns from them alone."""
    torch.manual_seed(3)
    tokens, width, count = size(6, 9), size(2, 5), comm.ranks * size(2, 3)
    router, hidden = nn.Linear(width, count).double(), size(1, 5)
    experts = nn.ModuleList(mlp(width, hidden, width) for _ in range(count))
    routers, every = nn.ModuleList(deepcopy(router) for _ in range(comm.ranks)), deepcopy(experts)
    router.weight.data *= 1 + comm.rank  # rank 0's must win
    layer = kind(router, experts, comm, top_k, capacity, comm.exchange)

    def one(x: Tensor, router: nn.Module) -> tuple[Tensor, Tensor]:
        probability, taken, rows = router(x).softmax(-1), [0] * count, []
        gates, choices = probability.topk(top_k)
        for token, gate, chosen in zip(x, gates, choices.tolist(), strict=True):
            rows.append(torch.zeros_like(token))
            for place, number in enumerate(chosen):
                taken[number] += 1
                if taken[number] <= (capacity or tokens):
                    rows[-1] = rows[-1] + gate[place] * every[number](token)
        return torch.stack(rows), balance(probability, one_hot(choices.flatten(), count))

    trained = [*routers.parameters(), *every.parameters()]
    optimizers = SGD(layer.parameters(), RATE), SGD(trained, RATE)
    for step in range(STEPS):
        xs = [draw(9 * step + r, tokens, width).requires_grad_() for r in range(comm.ranks)]
        own = xs[comm.rank].detach().clone().requires_grad_()
        mine, rights = layer(own), [one(*each) for each in zip(xs, routers, strict=True)]
        right, even = rights[comm.rank]
        yield f"the output of step {step + 1}", mine, right
        yield f"the balance in step {step + 1}", layer.balance, even
        both = [(mine, layer.balance), *rights]
        torch.autograd.backward([out.square().mean() + level for out, level in both])
        yield f"the gradient of the tokens in step {step + 1}", own.grad, xs[comm.rank].grad
        _step(optimizers)


CHOICES: Cases = {"top-1": (1,), "top-2": (2,), "top-2 with capacity 3": (2, 3)}


def local_sgd(
    file: Any,
    comm: Tally,
    size: Size,
    every: int,
    kind: Callable[..., Optimizer],
    outer: tuple[float, ...] = (),
    joins: int = -1,
) -> Found:
    """Training in rounds, with a frozen layer; before one step all ranks may be newcomers."""
    torch.manual_seed(3)
    wide, (rate, momentum), inner = size(2, 6), outer or (1, 0), partial(kind, lr=RATE)
    net = mlp(wide, size(2, 5), size(2, 5), 1)
    net[2].requires_grad_(False)
    models = [deepcopy(net) for _ in range(comm.ranks)]
    inners = [inner(model.parameters()) for model in models]
    start, velocity = parameters_to_vector(_trained(net)).detach(), torch.zeros(())
    vector_to_parameters(parameters_to_vector(net.parameters()) + comm.rank, net.parameters())
    wrap = file.DiLoCo if outer else file.LocalSGD
    own = wrap(inner(net.parameters()), comm, every, *outer)
    for step in range(3 * every):
        if step == joins:
            state, net = deepcopy(own.state_dict()), deepcopy(net)
            vector_to_parameters(start + 1, _trained(net))
            own = wrap(inner(net.parameters()), comm, every, *outer)
            own.load_state_dict(state)
            inners = [inner(model.parameters()) for model in models]
        rows = draw(step, comm.ranks, 4, wide)
        pairs = [*zip(models, inners, rows, strict=True), (net, own, rows[comm.rank])]
        for model, optimizer, x in pairs:
            torch.autograd.backward(model(x).square().mean())
            _step([optimizer])
        if step % every == every - 1:
            ends = [parameters_to_vector(_trained(model)) for model in models]
            change = start - torch.stack(ends).mean(0).detach()
            velocity = momentum * velocity + change
            start = start - rate * (change + momentum * velocity)
            for model in models:
                vector_to_parameters(start.clone(), _trained(model))
        mine, right = map(parameters_to_vector, (net.parameters(), models[comm.rank].parameters()))
        yield f"the vector of weights after step {step + 1}", mine, right


ROUNDS: Cases = {
    "LocalSGD with H = 1": (1, SGD),
    "LocalSGD with H = 3": (3, AdamW),
    "DiLoCo": (2, SGD, (0.7, 0.9)),
    "DiLoCo with newcomers": (2, SGD, (0.7, 0.9), 4),
}


def _gradients(parameters: Iterable[nn.Parameter]) -> Tensor:
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.cat([grad.flatten() for grad in grads])


def _trained(net: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def _step(optimizers: Iterable[Any]) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
