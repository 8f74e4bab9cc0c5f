"""What the proofs of DDP, ZeRO and FSDP train, in which ways, and what they compare.

A case is trained in minidist's way on all ranks, each with its share of the batch; in torch's way,
in the same launch, on the same shares; and by the parent, alone, on the whole batch. Each keeps its
own weights and its own optimizer, so that a difference adds up from step to step.
"""

import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

import minidist
from course.training import data, models
from minidist.comm.comm import Comm
from minidist.comm.counted import Counted
from minidist.comm.native import Native
from minidist.comm.ours import Ours
from tests.support.training import digest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses torch.jit, which is deprecated
    from torch.distributed.optim import ZeroRedundancyOptimizer

BATCH = 24  # samples in a step on all ranks together: 1 to 4 divide it
CONTEXT = 8
PIXELS = 61  # of an image's 64: no number of ranks divides it

LOSSES = {torch.float64: 1e-10, torch.float32: 1e-5}  # how far they may be from a reference's
TENSORS = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest element of all
COMMS: dict[str, Callable[[], Comm]] = {
    "ring": lambda: Ours(algorithm="ring"),
    "auto": lambda: Ours(),
    "native": lambda: Native(),
    "counted": lambda: Counted(Ours(algorithm="ring")),
}
OPTIMIZERS: dict[str, "partial[Optimizer]"] = {
    "sgd": partial(SGD, lr=0.05, momentum=0.9),
    # Some gradients of attention are zeros but for rounding: a step must not depend on those.
    "adamw": partial(AdamW, lr=3e-3, eps=1e-5),
}
DDP = ["ddp"]
ZERO = ["zero 1 on ddp", "zero 1", "zero 2"]
FSDP = ["fsdp", "fsdp kept"]
FACTORS: dict[str, list[Any]] = {
    "way": DDP + ZERO + FSDP,
    "ranks": [1, 2, 3, 4],
    "model": ["odd", "gpt", "mlp", "convnet", "convnet in eval mode"],
    "comm": list(COMMS),
    "optimizer": list(OPTIMIZERS),
    "dtype": [torch.float64, torch.float32],
    "cap": [1e-4, 5e-3, 25],  # MiB: about a bucket for each parameter, a few, one
    "views": [False, True],
    "backwards": ["one", "two", "two, one quiet"],  # to a step
    "shards": ["even", "uneven"],
}


@dataclass(frozen=True)
class Case:
    """One run; the fields are FACTORS', `way` may also be one of torch's."""

    way: str
    ranks: int
    model: str = "odd"
    comm: str = "ring"
    optimizer: str = "sgd"
    dtype: torch.dtype = torch.float64
    cap: float = 5e-3
    views: bool = False
    backwards: str = "one"
    shards: str = "even"
    steps: int = 4

    @property
    def equals_one_process(self) -> bool:
        """BatchNorm in training sees a share of the batch instead of all of it."""
        return self.model != "convnet" or (self.ranks == 1 and self.backwards == "one")

    def torchs(self) -> "Case":
        """What is trained in torch's way to compare with; the same for as many as can be."""
        way = f"torch's {self.way.split()[0]}"
        plain = Case(way, self.ranks, self.model, optimizer=self.optimizer, dtype=self.dtype)
        if self.model == "convnet":
            plain = replace(plain, backwards=self.backwards, shards=self.shards)
        return replace(plain, steps=self.steps)

    def alone(self) -> "Case":
        """What one process trains to compare with."""
        return replace(replace(self, backwards="one").torchs(), way="one process", ranks=1)

    def shares(self) -> list[int]:
        """How many samples each rank has."""
        even = BATCH // self.ranks
        skew = 2 if self.shards == "uneven" else 0
        return [even + skew * rank - skew * (self.ranks - 1) // 2 for rank in range(self.ranks)]


# ---- which cases ----


def long_cases() -> list[Case]:
    """Each model under DDP, and each way to shard, on two ranks and on three."""
    found = []
    for turn, ranks in enumerate((2, 3)):
        for m, model in enumerate(FACTORS["model"][1:]):
            optimizer = list(OPTIMIZERS)[(m + turn) % 2]
            comm = list(COMMS)[m ^ turn]
            found.append(Case("ddp", ranks, model, comm, optimizer, steps=20))
        for w, way in enumerate(ZERO + FSDP):
            model, comm = FACTORS["model"][(w + turn) % 2], list(COMMS)[(w + turn) % 4]
            case = Case(way, ranks, model, comm, list(OPTIMIZERS)[(w // 2 + turn) % 2], steps=20)
            found.append(replace(case, dtype=FACTORS["dtype"][turn]))
    return found


def possible(row: dict[str, Any]) -> bool:
    """Whether these values may meet: DDP alone has views, and shares a model's buffers."""
    ddp = row.get("way", "ddp").startswith("ddp")
    return ddp or not (row.get("views") or "convnet" in row.get("model", ""))


def pairs(row: dict[str, Any]) -> set[Any]:
    """Every two values of a row that meet in it."""
    return set(itertools.combinations(row.items(), 2))


def possible_pairs() -> set[Any]:
    """Every two values of any two factors that may meet."""
    return {
        ((one, x), (other, y))
        for one, other in itertools.combinations(FACTORS, 2)
        for x, y in itertools.product(FACTORS[one], FACTORS[other])
        if possible({one: x, other: y})
    }


@cache
def covering_cases() -> list[Case]:
    """A few dozen rows in which every two values that may meet do."""
    source, rows, left = random.Random(0), [], possible_pairs()
    while left:
        wanted = dict(min(left, key=str))
        tries = [
            {name: source.choice(values) for name, values in FACTORS.items()} | wanted
            for _ in range(60)
        ]
        rows.append(max(filter(possible, tries), key=lambda row: len(pairs(row) & left)))
        left -= pairs(rows[-1])
    return [Case(**row) for row in rows]


# ---- what is trained, and on what ----


class Block(nn.Module):
    """A residual; its parameters' sizes, and their sum, are divided by neither 2 nor 3."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Odd(nn.Module):
    """Sizes that nothing divides, among them one that is smaller than the number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(PIXELS, 13)
        self.blocks = nn.ModuleList([Block(13, 7), Block(13, 11)])
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(13, 11)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(images.flatten(1)[:, :PIXELS]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.scale * x)


Tensors = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]
Pool = dict[str, Batch]  # all samples; loaded once, by the parent


@cache
def pool() -> Pool:
    """Real data, a little of it."""
    images, labels = data.digits()
    ids, _ = data.characters(data.text()[:4000])
    rows = ids[: len(ids) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    digits = images[:256], labels[:256]
    return {"digits": digits, "text": (rows[:, :-1].contiguous(), rows[:, 1:].contiguous())}


def share(case: Case, samples: Pool, step: int, rank: int) -> Batch:
    """A rank's part of a step's batch."""
    inputs, labels = samples["text" if case.model == "gpt" else "digits"]
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:BATCH]
    mine = chosen.split(case.shares())[rank]
    inputs = inputs[mine]
    return inputs.to(case.dtype) if inputs.is_floating_point() else inputs, labels[mine]


def network(case: Case, seed: int, samples: Pool) -> nn.Module:
    """The model with weights and running statistics of this seed."""
    torch.manual_seed(seed)
    vocab = int(samples["text"][0].max()) + 1
    make = {"odd": Odd, "mlp": models.mlp, "gpt": lambda: models.GPT(vocab, 8, 2, 2, CONTEXT)}
    net = make.get(case.model, models.convnet)().to(case.dtype)
    for name, buffer in net.named_buffers():
        if "running_mean" in name:
            buffer.uniform_(-0.2, 0.2)
        elif "running_var" in name:
            buffer.uniform_(0.05, 0.15)
    return net.train(case.model != "convnet in eval mode")


# ---- ways to train ----


class Made(NamedTuple):
    """A model, ready to train; `quiet` is what to call before and after a backward is to be."""

    model: nn.Module
    optimizer: Any
    quiet: Callable[[], Any] = nullcontext


def wrapped(
    net: nn.Module,
    way: str,
    comm: Any,
    optimizer: "partial[Optimizer]",
    cap: float = 25,
    find: bool = False,
    units: Sequence[nn.Module] = (),
) -> Made:
    """The model in one of minidist's ways, as in DDP, ZERO and FSDP; the last with these units."""
    if way.startswith("fsdp"):
        for unit in units:
            reshard = "kept" not in way
            minidist.fully_shard(unit, comm=comm, reshard_after_forward=reshard)
        return Made(net, optimizer(trained(net)), partial(unsynchronised, net))
    model, quiet = net, nullcontext
    if "ddp" in way:
        model = minidist.DistributedDataParallel(
            net,
            gradient_as_bucket_view="views" in way,
            bucket_cap_mb=cap,
            first_bucket_mb=cap / 2,
            find_unused_parameters=find,
            comm=comm,
        )
        quiet = model.no_sync
    if way.startswith("ddp"):
        return Made(model, optimizer(trained(net)), quiet)
    options = {"stage": 2 if "2" in way else 1, "bucket_cap_mb": cap, "comm": comm}
    if way == "zero 1":
        options["gradients"] = "local"
    zero = minidist.ZeroOptimizer(net.parameters(), optimizer.func, **options, **optimizer.keywords)
    return Made(model, zero, zero.no_sync if way == "zero 2" else quiet)


def trained(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def torchs(net: nn.Module, case: Case) -> Made:
    """The model in torch's way: DDP, ZeroRedundancyOptimizer on it, or FSDP2."""
    make = OPTIMIZERS[case.optimizer]
    if case.way == "torch's fsdp":
        for tensor in net.state_dict().values():  # it starts with each rank's own values
            dist.broadcast(tensor, 0)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for unit in units(net):
            fully_shard(unit, mesh=mesh)
        net.set_force_sum_reduction_for_comms(True)  # Gloo knows no mean
        return Made(net, make(net.parameters()), partial(unsynchronised, net))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = make(net.parameters())
    if case.way == "torch's zero":
        optimizer = ZeroRedundancyOptimizer(net.parameters(), make.func, **make.keywords)
    return Made(model, optimizer, model.no_sync)


def made(net: nn.Module, case: Case, comm: Comm | None) -> Made:
    """The model of a case, ready to train."""
    optimizer = OPTIMIZERS[case.optimizer]
    if case.way == "one process":
        return Made(net, optimizer(net.parameters()))
    if case.way.startswith("torch's"):
        return torchs(net, case)
    way = f"{case.way}, views" if case.views else case.way
    return wrapped(net, way, comm, optimizer, case.cap, units=units(net))


def units(net: nn.Module) -> list[nn.Module]:
    """FSDP's: each block, and the root with the rest."""
    return [*getattr(net, "blocks", ()), net]


Make = Callable[[nn.Module, Case, Any], Made]


@contextmanager
def unsynchronised(net: Any) -> Iterator[None]:
    """Gradients are not reduced inside; for torch's FSDP2 and ours alike."""
    net.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        net.set_requires_gradient_sync(True)


# ---- a run ----


class Run(NamedTuple):
    """What came of a run on this rank."""

    losses: list[float]  # its part of each step's mean loss
    bits: list[str]  # a digest of its weights and gradients after each step
    gradients: Tensors  # of the last step
    weights: Tensors
    buffers: Tensors  # this rank's own


def train(case: Case, samples: Pool, make: Make = made) -> Run:
    """Train on this rank, from other weights on each rank: rank 0's must win."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    net = network(case, rank, samples)
    comm = COMMS[case.comm]() if dist.is_initialized() else None
    try:
        ready = make(net, case, comm)
        losses, bits = [], []
        for number in range(case.steps):
            losses.append(backward(ready, case, share(case, samples, number, rank)))
            last = full_gradients(net) if number == case.steps - 1 else {}
            ready.optimizer.step()
            bits.append(digest(net) if case.way.startswith("ddp") else "")
        weights = full_weights(net)
    except Exception as error:
        error.add_note(f"in {case}")
        raise
    buffers = {name: each.clone() for name, each in net.named_buffers()}
    parameters = {name: each for name, each in weights.items() if name not in buffers}
    return Run(losses, bits, last, parameters, buffers)


@cache
def train_alone(case: Case) -> Run:
    """Train in this process, without any other."""
    return train(case, pool())


def backward(made: Made, case: Case, mine: Batch) -> float:
    """Leave the step's gradients in place; return this rank's part of the mean loss."""
    inputs, labels = mine
    part = len(labels) / BATCH  # of the samples
    weighs = isinstance(made.model, minidist.DistributedDataParallel) and case.shards == "uneven"
    factor = 1.0 if weighs else part * case.ranks
    micro = 1 if case.backwards == "one" else 2
    made.optimizer.zero_grad()
    total = 0.0
    for turn, (x, y) in enumerate(
        zip(inputs.tensor_split(micro), labels.tensor_split(micro), strict=True)
    ):
        if weighs:
            made.model.weigh(len(labels))
        with made.quiet() if "quiet" in case.backwards and turn == 0 else nullcontext():
            logits = made.model(x).flatten(0, -2)
            loss = functional.cross_entropy(logits, y.flatten(), reduction="sum") / labels.numel()
            (loss * factor).backward()
        total += loss.item() * part
    return total


def full_gradients(net: nn.Module) -> Tensors:
    """Copies of all full gradients."""
    return copies(
        {name: p.grad for name, p in net.named_parameters()}, net, minidist.full_gradients
    )


def full_weights(net: nn.Module) -> Tensors:
    """Copies of all full weights and of the buffers."""
    return copies(net.state_dict(), net, minidist.full_state_dict)


def copies(found: Any, net: nn.Module, gathered: Callable[[nn.Module], Any]) -> Tensors:
    """Of what torch's FSDP2 has, or one process, or minidist."""
    if any(isinstance(each, DTensor) for each in found.values()):
        found = {name: each.full_tensor() for name, each in found.items()}
    elif dist.is_initialized():
        found = gathered(net)
    return {name: each.detach().clone() for name, each in found.items()}


# ---- what is compared ----


def prove(ranks: int, cases: dict[str, tuple[Case, Make]]) -> dict[str, list[str]]:
    """Train every case on so many ranks; what is wrong with each, in words."""
    twins = sorted({case.torchs() for case, _ in cases.values()}, key=str)

    def run(samples: Pool) -> list[Run]:
        every = [*((twin, made) for twin in twins), *cases.values()]
        return [train(case, samples, make) for case, make in every]

    found = minidist.launch(run, ranks, pool(), device="cpu", timeout=400)
    runs = [list(each) for each in zip(*found, strict=True)]
    known = dict(zip(twins, runs, strict=False))
    return {
        name: list(complaints(case, each, known[case.torchs()]))
        for (name, (case, _)), each in zip(cases.items(), runs[len(twins) :], strict=True)
    }


def complaints(case: Case, runs: list[Run], torchs: list[Run]) -> Iterator[str]:
    """What is wrong with a case, of which each rank has given its run."""
    twins = {"one process": [train_alone(case.alone())]} if case.equals_one_process else {}
    got, losses = runs[0], whole_losses(runs)
    for name, wanted in (twins | {"torch's": torchs}).items():
        want = whole_losses(wanted)
        off = ((losses - want) / want.abs().clamp(min=1)).abs().max()
        if not off <= LOSSES[case.dtype]:
            yield f"the losses, against {name}: off by {off:.1e}"
        # In a second forward torch's buffers are another rank's already.
        for what in ["gradients", "weights"] + ["buffers"] * (case.backwards == "one"):
            for run, twin in zip(runs, wanted, strict=False):
                mine, right = getattr(run, what), getattr(twin, what)
                allowed = TENSORS[case.dtype] * max(map(largest, right.values()), default=0.0)
                yield from differ(f"the {what}, against {name}", mine, right, lambda _: allowed)  # noqa: B023
    for rank, run in enumerate(runs):
        tensors = zip(run.weights.values(), got.weights.values(), strict=True)
        if run.bits != got.bits or not all(itertools.starmap(torch.equal, tensors)):
            yield f"the bits: rank {rank} has others than rank 0"
    if still := [name for name, gradient in got.gradients.items() if not gradient.any()]:
        yield f"the gradients of {still} are zeros"
    if case.steps >= 20 and losses[-5:].sum() > 0.97 * losses[:5].sum():
        yield f"the losses do not fall: {losses[:5]}, in the end {losses[-5:]}"


def whole_losses(runs: list[Run]) -> torch.Tensor:
    return torch.tensor([run.losses for run in runs], dtype=torch.float64).sum(0)


def largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max())


def differ(
    what: str, got: Any, want: Any, allowed: Callable[[torch.Tensor], float]
) -> Iterator[str]:
    """Where two sets of tensors are apart by more than is allowed for each."""
    if got.keys() != want.keys():
        yield f"{what}: there are {sorted(got)}, expected {sorted(want)}"
        return
    for name, right in want.items():
        found = got[name]
        if found is None or right is None:
            if found is not right:
                yield f"{what}: {name} is {found}, expected {right}"
        elif (found.shape, found.dtype) != (right.shape, right.dtype):
            yield f"{what}: {name} has {found.shape}, {found.dtype} for {right.shape}"
        elif not (off := largest(found - right)) <= (most := allowed(right)):
            yield f"{what}: {name} is off by {off:.1e}, at most {most:.1e} is allowed"
