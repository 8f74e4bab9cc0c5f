"""The milestones' scenarios: what the reader's code must compute on every rank.

A scenario runs it beside one process with the whole batch and all weights, and yields what both
find. Weights show in what comes out once they have been trained, so no scenario needs to know what
a reader calls them. What a rank need not look at is NaN.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW, Optimizer

import minidist
from course.ask import journal
from course.ask.verdict import many
from course.project.models import Drawn, Task, mlp
from course.project.trained import LEARNING_RATE, Make, Train, Trained
from minidist.collectives.call import record
from minidist.comm.comm import Pending, Start
from minidist.comm.counted import Counted

STEPS, RATE = 2, 0.1
CAP = 2e-4  # MiB: several buckets of each model


class Tally(Counted):
    """A comm that counts an all-to-all, too."""

    def around(self, name: str, full: Tensor, call: Start, async_op: bool) -> Pending:
        """Make the call, once it is in the journal."""
        journal.write(name, nbytes=full.nbytes)
        return super().around(name, full, call, async_op)

    def exchange(self, output: Tensor, *args: Any, **options: Any) -> None:
        """As torch's all_to_all_single."""
        journal.write("exchange")
        with record() as log:
            self._logs.append(log)
            minidist.all_to_all_single(output, *args, **options)


class Found(NamedTuple):
    """Something that comes out, as the reader's code and as one process finds it."""

    what: str
    mine: Any
    right: Any
    slips: Mapping[str, Tensor] = {}  # a sentence about a mistake → what it makes


Scenario = Callable[..., Iterator[Found]]  # scenario(the reader's class or file, comm, drawn, ...)
Cases = dict[str, tuple[Any, ...]]  # name → further arguments of a scenario


def ring(file: Any, comm: Tally, drawn: Drawn, collective: str) -> Iterator[Found]:
    """A collective; its tensor has equal chunks, unless it is an all-reduce of any size."""
    ranks, chunk = comm.ranks, drawn.size("elements of a chunk", 18, 200)
    still = "It is still this rank's own."
    if collective == "any size":
        for numel in (0, 1, ranks - 1, ranks, ranks + 1, 17, chunk):
            every = drawn.numbers(numel, ranks, numel)
            own = every[comm.rank].clone()
            file.all_reduce(own)
            what = f"the sum of {many(numel, 'element')}"
            yield Found(what, own, every.sum(0), {still: every[comm.rank]})
        return
    every = drawn.numbers(0, ranks, ranks, chunk)
    own, part, right = every[comm.rank].clone(), torch.empty(chunk).double(), every.sum(0)
    if collective == "all_reduce":
        file.all_reduce(own.view(-1))
        yield Found("the sum", own, right, {still: every[comm.rank]})
    elif collective == "reduce_scatter":
        file.reduce_scatter(part, own)
        slips = {f"It is the part of rank {r}.": right[r] for r in range(ranks) if r != comm.rank}
        unfinished = "It is this rank's own part, to which nothing was added: was another chunk "
        slips[f"{unfinished}finished here?"] = every[comm.rank, comm.rank]
        told = "Its right neighbor adds what a rank sends to a chunk of another number"
        slips |= {f"{told} ({by} less).": crossed(every, by)[comm.rank] for by in range(1, ranks)}
        yield Found("this rank's part of the sum", part, right[comm.rank], slips)
        yield Found("the input, which must stay as it was,", own, every[comm.rank])
    else:
        part.copy_(own[0])
        file.all_gather(own, part)
        shifted = {
            f"All parts stand {by} to the right of their place.": every[:, 0].roll(by, 0)
            for by in range(1, ranks)
        }
        yield Found("what is gathered", own, every[:, 0], shifted)


def crossed(every: Tensor, by: int) -> Tensor:
    """What ranks end with if each adds to the chunk whose number is `by` less than what it got."""
    own, ranks = every.clone(), range(len(every))
    for step in ranks[:-1]:
        sent = [own[rank, (rank - 1 - step + by) % len(ranks)].clone() for rank in ranks]
        for rank in ranks:
            own[rank, (rank - 2 - step) % len(ranks)] += sent[rank - 1]
    return own[ranks, ranks]


COLLECTIVES: Cases = {name: (name,) for name in ("reduce_scatter", "all_gather", "all_reduce")}
SIZES: Cases = {"all_reduce of any size": ("any size",)}


def training(
    kind: Any,
    comm: Tally,
    drawn: Drawn,
    train: Train,
    task: Task,
    optimizer: Make = AdamW,
) -> Iterator[Found]:
    """Four steps from rank 0's weights, each rank with its rows."""
    torch.manual_seed(drawn.seed)
    net = task.build(drawn)
    drawn.size("rows of a rank", 1, 20)
    alone, own = deepcopy(net), shifted(net, comm.rank)  # rank 0's must win
    buffers = dict(deepcopy(own).named_buffers())
    trained = train(kind, own, comm, CAP, optimizer)
    right = Trained(alone, optimizer(alone.parameters(), lr=LEARNING_RATE))
    slips = unlike(alone, comm.ranks)
    for step in range(4):
        rows = task.batch(drawn, step, comm.ranks)
        loss = task.loss(trained.model, rows[comm.rank])
        trained.step(loss)
        whole = task.loss(alone, rows.flatten(0, 1))
        mean = loss.detach() / comm.ranks
        journal.write(f"end of step {step + 1}")  # a rank that waits before it is named
        dist.all_reduce(mean)
        made = {
            told: torch.stack([*map(task.loss, models, rows)]).mean()
            for told, models in slips.items()
        }
        yield Found(f"the mean loss of all ranks in step {step + 1}", mean, whole, made)
        first = step == 0 and optimizer is SGD
        slips = apart(alone, rows, task, comm.ranks) if first else {}
        right.step(whole)
    for name, weight in trained.weights().items():
        yield Found(f"the weight {name} after all steps", weight, alone.get_parameter(name))
    for name, buffer in own.named_buffers():
        slip = {"It is this rank's own: send rank 0's buffers, too.": buffers[name]}
        yield Found(f"the buffer {name} after all steps", buffer, alone.get_buffer(name), slip)


Slips = dict[str, list[nn.Module]]  # a sentence about a mistake → the model that each rank then has


def shifted(net: nn.Module, rank: int, weights: bool = True) -> nn.Module:
    """The model as a rank makes it, all of whose numbers are others; or only its buffers."""
    net = deepcopy(net)
    with torch.no_grad():
        for tensor in [*(net.parameters() if weights else ()), *net.buffers()]:
            tensor.add_(rank)
    return net


def unlike(net: nn.Module, ranks: int) -> Slips:
    """The models that start otherwise than as rank 0's."""
    own = "Every rank starts with its own weights: send rank 0's to all."
    slips = {own: [shifted(net, rank) for rank in range(ranks)]}
    if any(True for _ in net.buffers()):
        told = "Every rank has its own buffers: send rank 0's to all, as its weights."
        slips[told] = [shifted(net, rank, weights=False) for rank in range(ranks)]
    return slips if ranks > 1 else {}


def apart(net: nn.Module, rows: Tensor, task: Task, ranks: int) -> Slips:
    """The models after their first step, where gradients are not averaged once."""

    def stepped(rows: Tensor, factor: float) -> nn.Module:
        other = deepcopy(net)
        torch.autograd.backward(factor * task.loss(other, rows))
        step_all([SGD(other.parameters(), LEARNING_RATE)])
        return other

    every, alone = rows.flatten(0, 1), [stepped(own, 1) for own in rows]
    sums = f"The gradients are added up over {ranks} ranks, and not divided by their number."
    twice = "The gradients are divided twice by the number of ranks."
    slips = {
        sums: ranks * [stepped(every, ranks)],
        twice: ranks * [stepped(every, 1 / ranks)],
        "Each rank has stepped by its own gradient: it is not averaged.": alone,
        "It is the loss of the weights before step 1: the model does not use those that the "
        "optimizer has stepped on.": ranks * [deepcopy(net)],
    }
    for shard, groups in layouts(net).items():
        own = f"Each rank has stepped on its {shard} by its own gradient: reduce it first."
        slips[own] = ranks * [resharded(net, alone, groups, _own_part)]
        again = f"The gradients are reduced twice: reduce-scatter has summed this rank's {shard}."
        slips[again] = ranks * [resharded(net, alone, groups, _sum_of_parts)]
    return slips if ranks > 1 else {}


def layouts(net: nn.Module) -> dict[str, list[list[str]]]:
    """What a shard is a part of: all that trains, as in FSDP, or a bucket, as in ZeRO."""
    names, buckets, room = [name for name, p in net.named_parameters() if p.requires_grad], [], 0.0
    for name in reversed(names):  # as backward reaches them
        buckets += [] if room > 0 else [list[str]()]
        room = (room if room > 0 else CAP * 2**20) - net.get_parameter(name).nbytes
        buckets[-1].append(name)
    return {"shard": [names], "shard of a bucket": buckets}


def resharded(
    net: nn.Module,
    stepped: Sequence[nn.Module],
    groups: Sequence[Sequence[str]],
    part: Callable[[Tensor], Tensor],
) -> nn.Module:
    """The model after a step; of each group, the change of every rank's model is cut into shards.

    `part` makes of these changes, [model, shard, number], what the shards really change by.
    """
    net = deepcopy(net)
    for names in groups:
        start, *ends = (
            parameters_to_vector(map(model.get_parameter, names)).detach()
            for model in (net, *stepped)
        )
        size = -(-len(start) // len(ends))
        changes = start.new_zeros(len(ends), len(ends) * size)
        changes[:, : len(start)] = torch.stack(ends) - start
        change = part(changes.view(len(ends), len(ends), size)).flatten()
        vector_to_parameters(start + change[: len(start)], map(net.get_parameter, names))
    return net


def _own_part(changes: Tensor) -> Tensor:
    return changes[range(len(changes)), range(len(changes))]


def _sum_of_parts(changes: Tensor) -> Tensor:
    return changes.mean(0).sum(0).expand(changes.shape[1:])


def local_sgd(
    file: Any,
    comm: Tally,
    drawn: Drawn,
    every: int,
    kind: Callable[..., Optimizer],
    outer: tuple[float, ...] = (),
    joins: int = -1,
) -> Iterator[Found]:
    """Training in rounds, with a frozen layer; before a round all ranks may be newcomers.

    A round has one step, or if `every` is 0 a drawn number.
    """
    torch.manual_seed(3)
    every = every or drawn.size("H", 6, 9)
    wide, (rate, momentum), inner = (
        drawn.size("width", 2, 6),
        outer or (1, 0),
        partial(kind, lr=RATE),
    )
    net = mlp(wide, *(drawn.size(f"hidden {n}", 2, 5) for n in (1, 2)), 1)
    net[2].requires_grad_(False)
    models = [deepcopy(net) for _ in range(comm.ranks)]
    inners = [inner(model.parameters()) for model in models]
    start, velocity = parameters_to_vector(_trained(net)).detach(), torch.zeros(())
    vector_to_parameters(parameters_to_vector(net.parameters()) + comm.rank, net.parameters())
    wrap = file.DiLoCo if outer else file.LocalSGD
    own = wrap(inner(net.parameters()), comm, every, *outer)
    for step in range(3 * every):
        if step == joins * every:
            state, net = deepcopy(own.state_dict()), deepcopy(net)
            vector_to_parameters(start + 1, _trained(net))
            own = wrap(inner(net.parameters()), comm, every, *outer)
            own.load_state_dict(state)
            inners = [inner(model.parameters()) for model in models]
        rows = drawn.numbers(step, comm.ranks, 4, wide)
        pairs = [*zip(models, inners, rows, strict=True), (net, own, rows[comm.rank])]
        for model, optimizer, x in pairs:
            torch.autograd.backward(model(x).square().mean())
            step_all([optimizer])
        ends = [parameters_to_vector(model.parameters()).detach() for model in models]
        slips = {}
        if step % every == every - 1:
            slips["It is this rank's own: nothing was averaged."] = ends[comm.rank]
            trained = [parameters_to_vector(_trained(model)) for model in models]
            change = start - torch.stack(trained).mean(0).detach()
            velocity = momentum * velocity + change
            start = start - rate * (change + momentum * velocity)
            for model in models:
                vector_to_parameters(start.clone(), _trained(model))
        else:
            slips["It was averaged inside a round."] = torch.stack(ends).mean(0)
        mine, right = map(parameters_to_vector, (net.parameters(), models[comm.rank].parameters()))
        what = f"the vector of weights after step {step + 1}"
        yield Found(what, mine, right, slips if comm.ranks > 1 else {})


ROUNDS: Cases = {
    "LocalSGD with H = 1": (1, SGD),
    "LocalSGD": (0, AdamW),
    "DiLoCo": (0, SGD, (0.7, 0.9)),
    "DiLoCo with newcomers": (0, SGD, (0.7, 0.9), 2),
}


def _trained(net: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def step_all(optimizers: Iterable[Any]) -> None:
    """Step on the gradients, and drop them."""
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
