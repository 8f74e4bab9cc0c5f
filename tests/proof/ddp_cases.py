"""What the proof of DistributedDataParallel trains, how, and what it compares after every step.

One batch is trained on three times over: by minidist's DDP, each rank with its shard; by torch's
DDP on the same shards; and by one process (rank 0) on the whole. Each keeps its own weights and its
own optimizer, so that a difference adds up from step to step.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import minidist
from course.training import data, models
from minidist.comm.comm import Comm, Counted, Native, Ours
from minidist.comm.replicas import check_replicas
from minidist.errors import ReplicaError

BATCH = 24  # images, or rows of text, in a step on all ranks together: 1 to 4 divide it
CONTEXT = 8

Tensors = dict[str, torch.Tensor]
Wrap = Callable[[nn.Module, "Case", Comm], nn.Module]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest gradient

COMMS: dict[str, Callable[[], Comm]] = {
    "ring": lambda: Ours(algorithm="ring"),
    "auto": lambda: Ours(algorithm="auto"),
    "native": lambda: Native(),
    "counted": lambda: Counted(Ours(algorithm="ring")),
}
FACTORS: dict[str, list[Any]] = {
    "model": ["mlp", "convnet", "convnet in eval mode", "gpt"],
    "ranks": [1, 2, 3, 4],
    "sync": ["naive", "flat", "bucketed", "overlapped"],
    "comm": list(COMMS),
    "optimizer": ["sgd", "adamw"],
    "dtype": [torch.float64, torch.float32],
    "cap": [1e-4, 5e-3, 25],  # MiB: about a bucket for each parameter, a few, one
    "views": [False, True],
    "micro": [1, 2],  # backward passes to a step, all but the last under no_sync
    "shards": ["even", "uneven"],
}


@dataclass(frozen=True)
class Case:
    """One run; the fields are FACTORS'."""

    model: str
    ranks: int
    sync: str = "overlapped"
    comm: str = "ring"
    optimizer: str = "sgd"
    dtype: torch.dtype = torch.float64
    cap: float = 5e-3
    views: bool = False
    micro: int = 1
    shards: str = "even"
    steps: int = 4

    def __str__(self) -> str:
        values = ["views" if self.views else "no views", f"{self.micro} micro", self.shards]
        head = [self.model, self.sync, self.comm, self.optimizer, str(self.dtype)[6:]]
        return f"{self.ranks}-rank {', '.join([*head, f'cap {self.cap}', *values])}"

    @property
    def equals_one_process(self) -> bool:
        """BatchNorm in training sees a shard instead of the batch."""
        return self.model != "convnet" or (self.ranks == self.micro == 1)

    def shares(self) -> list[int]:
        """How many samples each rank has."""
        even = BATCH // self.ranks
        skew = 2 if self.shards == "uneven" else 0
        return [even + skew * rank - skew * (self.ranks - 1) // 2 for rank in range(self.ranks)]


def long_cases(steps: int = 50) -> list[Case]:
    """Every model with every number of ranks, in two orthogonal Latin squares of the 4 × 4.

    So every way to synchronise meets every comm, every model and every number of ranks.
    """
    twice = [0, 2, 3, 1]  # times 2 in the field of four elements, where plus is ^
    found = []
    for (m, model), (r, ranks) in itertools.product(
        enumerate(FACTORS["model"]), enumerate(FACTORS["ranks"])
    ):
        sync, comm = FACTORS["sync"][m ^ r], FACTORS["comm"][m ^ twice[r]]
        optimizer = FACTORS["optimizer"][(m ^ twice[twice[r]]) % 2]
        found.append(Case(model, ranks, sync, comm, optimizer, steps=steps))
    return found


def pairs(row: dict[str, Any]) -> set[Any]:
    """Every two values of a row that meet in it."""
    return set(itertools.combinations(row.items(), 2))


@cache
def covering_cases() -> list[Case]:
    """A few dozen rows in which every two values of any two factors meet."""
    everything = {
        ((one, x), (other, y))
        for one, other in itertools.combinations(FACTORS, 2)
        for x, y in itertools.product(FACTORS[one], FACTORS[other])
    }
    source, rows, left = random.Random(0), [], set(everything)
    while left:
        wanted = min(left, key=str)
        tries = [
            {name: source.choice(values) for name, values in FACTORS.items()} | dict(wanted)
            for _ in range(60)
        ]
        rows.append(max(tries, key=lambda row: len(pairs(row) & left)))
        left -= pairs(rows[-1])
    return [Case(**row) for row in rows]


# ---- what is trained, and on what ----

Batch = tuple[torch.Tensor, torch.Tensor]
Pool = dict[str, Batch]  # all samples, by the model's name; loaded once, by the parent


@cache
def pool() -> Pool:
    """Real data, a little of it."""
    images, labels = data.digits()
    ids, _ = data.characters(data.text()[:4000])
    rows = ids[: len(ids) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    digits = images[:256], labels[:256]
    return {"digits": digits, "text": (rows[:, :-1].contiguous(), rows[:, 1:].contiguous())}


def batch(case: Case, samples: Pool, step: int) -> Batch:
    """The whole batch of a step, which all ranks draw alike."""
    inputs, labels = samples["text" if case.model == "gpt" else "digits"]
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:BATCH]
    inputs = inputs[chosen]
    return inputs.to(case.dtype) if inputs.is_floating_point() else inputs, labels[chosen]


def network(case: Case, seed: int, samples: Pool) -> nn.Module:
    """The model with weights and running statistics of this seed."""
    torch.manual_seed(seed)
    vocab = int(samples["text"][0].max()) + 1
    make = {"mlp": models.mlp, "gpt": lambda: models.GPT(vocab, 16, 2, 2, CONTEXT)}
    net = make.get(case.model, models.convnet)().to(case.dtype)
    for name, buffer in net.named_buffers():
        if "running_mean" in name:
            buffer.uniform_(-0.2, 0.2)
        elif "running_var" in name:
            buffer.uniform_(0.05, 0.15)
    return net.train(case.model != "convnet in eval mode")


def optimizer_of(case: Case, net: nn.Module) -> torch.optim.Optimizer:
    """Of the kind that the case asks for."""
    if case.optimizer == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(net.parameters(), lr=3e-3)


# ---- three ways to train ----


def ours(net: nn.Module, case: Case, comm: Comm) -> nn.Module:
    """minidist's DDP as the case asks for it."""
    return minidist.DistributedDataParallel(
        net,
        bucket_cap_mb=case.cap,
        gradient_as_bucket_view=case.views,
        sync=case.sync,
        first_bucket_mb=case.cap / 2,
        comm=comm,
    )


def torchs(net: nn.Module, case: Case, comm: Comm) -> nn.Module:
    """torch's DDP, the oracle."""
    return nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=case.views)


class Trainer:
    """One model in training, wrapped, or, with `wrap` None, alone with the whole batch."""

    def __init__(self, case: Case, net: nn.Module, wrap: Wrap | None) -> None:
        self.case, self.net, self.comm = case, net, COMMS[case.comm]()
        self.model = wrap(net, case, self.comm) if wrap else net
        self.alone = wrap is None
        self.weighs = isinstance(self.model, minidist.DistributedDataParallel)
        self.optimizer = optimizer_of(case, net)

    def backward(self, whole: Batch) -> float:
        """Leave the step's gradients in place; return this process's part of the mean loss."""
        case, rank = self.case, dist.get_rank()
        shares = [BATCH] if self.alone else case.shares()
        inputs, labels = (part.split(shares)[0 if self.alone else rank] for part in whole)
        count, factor = len(labels), 1.0
        if case.shards == "uneven" and not self.alone:
            if self.weighs:
                self.model.weigh(count)
            else:  # what weighing comes to when the gradients are averaged plainly
                factor = count * case.ranks / BATCH
        self.optimizer.zero_grad()
        total = 0.0
        micro = 1 if self.alone else case.micro
        for turn, (x, y) in enumerate(
            zip(inputs.tensor_split(micro), labels.tensor_split(micro), strict=True)
        ):
            last = turn == micro - 1
            with nullcontext() if last else self.model.no_sync():
                logits = self.model(x).flatten(0, -2)
                loss = functional.cross_entropy(logits, y.flatten(), reduction="sum")
                loss = loss / labels.numel()
                (loss * factor).backward()
            total += loss.item()
        return total * count / BATCH

    def gradients(self) -> Tensors:
        """A copy of each."""
        named = self.net.named_parameters()
        return {name: p.grad.detach().clone() for name, p in named if p.grad is not None}

    def buffers(self) -> Tensors:
        """A copy of each."""
        return {name: buffer.clone() for name, buffer in self.net.named_buffers()}


# ---- the proof of a case ----


def prove(case: Case, samples: Pool, wrap: Wrap = ours) -> list[str]:
    """Train on this rank; return all that is not as it should be, in words.

    Starts with other weights and other running statistics on each rank: rank 0's must win.
    """
    try:
        return [f"rank {dist.get_rank()}: {each}" for each in _differences(case, samples, wrap)]
    except Exception as error:
        raise RuntimeError(f"rank {dist.get_rank()}: {case}: {error}") from error


def _differences(case: Case, samples: Pool, wrap: Wrap) -> Iterator[str]:
    rank = dist.get_rank()
    own, first = network(case, rank, samples), network(case, 0, samples)
    mine = Trainer(case, copy.deepcopy(own), wrap)
    twin = Trainer(case, own, torchs)
    alone = Trainer(case, first, None) if rank == 0 and case.equals_one_process else None
    losses = []
    for step in range(case.steps):
        whole = batch(case, samples, step)
        loss = _sum(mine.backward(whole))
        losses.append(loss)
        yield from _traffic(case, mine, step)
        references = {"one process": (alone.backward(whole), alone)} if alone else {}
        references["torch's DDP"] = _sum(twin.backward(whole)), twin
        for name, (wanted, reference) in references.items():
            where = f"step {step}: the %s, against {name}"
            yield from _apart(where % "loss", loss, wanted, case.dtype)
            gradients = mine.gradients(), reference.gradients()
            yield from _differ(where % "gradients", *gradients, case.dtype)
        if case.micro == 1:  # else torch broadcasts before the first forward, ours before the last
            buffers = mine.buffers(), twin.buffers()
            yield from _differ(where % "buffers", *buffers, case.dtype)
        for trainer in [mine, twin] + ([alone] if alone else []):
            trainer.optimizer.step()
        yield from _bits(mine, step)
    yield from _moving(case, twin, losses)


def _sum(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def _apart(what: str, got: float, want: float, dtype: torch.dtype) -> Iterator[str]:
    off = abs(got - want) / max(1.0, abs(want))
    if not off <= TOLERANCE[dtype]:
        yield f"{what}: {got} for {want}"


def _moving(case: Case, twin: Trainer, losses: list[float]) -> Iterator[str]:
    """Where nothing moves, there is nothing to compare."""
    still = [name for name, gradient in twin.gradients().items() if not gradient.any()]
    if still:
        yield f"the gradients of {still} are zeros"
    if case.steps >= 50 and sum(losses[-5:]) > 0.95 * sum(losses[:5]):
        yield f"the losses do not fall: {losses[:5]}, in the end {losses[-5:]}"


def _differ(what: str, got: Tensors, want: Tensors, dtype: torch.dtype) -> Iterator[str]:
    if got.keys() != want.keys():
        yield f"{what}: there are {sorted(got)}, expected {sorted(want)}"
        return
    largest = max((float(each.abs().max()) for each in want.values()), default=0.0)
    for name in want:
        off = float((got[name] - want[name]).abs().max())
        if not off <= TOLERANCE[dtype] * largest:
            yield f"{what}: {name} is off by {off:.1e}; the largest is {largest:.1e}"
            return


def _bits(mine: Trainer, step: int) -> Iterator[str]:
    """Gradients and weights must be alike on all ranks in every bit; torch carries them here."""
    parameters, buffers = _parts(mine.net)
    held = parameters + [p.grad for p in parameters]
    bits = torch.cat([each.detach().reshape(-1) for each in held]).view(torch.uint8)
    others = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
    dist.all_gather(others, bits)
    if not all(torch.equal(bits, other) for other in others):
        yield f"step {step}: the bits, on rank {dist.get_rank()} and another"
    own_statistics = mine.net.training and bool(buffers)  # BatchNorm's are each rank's own
    try:
        check_replicas(mine.model, step, buffers=not own_statistics)
    except ReplicaError as error:
        yield f"step {step}: the bits, by their checksum: {error}"


def _traffic(case: Case, mine: Trainer, step: int) -> Iterator[str]:
    """All ranks together send 2(N - 1) times the gradients and N - 1 times the buffers.

    Later than the second step, before which the buckets are settled.
    """
    if not isinstance(mine.comm, Counted):
        return
    sent = _sum(mine.comm.bytes_sent)
    mine.comm.clear()
    gradients, buffers = (sum(t.nbytes for t in each) for each in _parts(mine.net))
    wanted = (case.ranks - 1) * (2 * gradients + buffers)
    if step > 1 and case.shards == "even" and sent != wanted:
        yield f"step {step}: the traffic: {sent} bytes, expected {wanted}"


def _parts(net: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return list(net.parameters()), list(net.buffers())
