"""What the proofs of ZeRO and of FSDP train, in which ways, and what they compare in the end.

A run is trained in minidist's way on all ranks, each with its share of the batch; in torch's way,
in the same launch, on the same shares; and by the parent, alone, on the whole batch. Each keeps its
own weights and its own optimizer, so that a difference adds up from step to step.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
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
from course.training import models
from minidist.comm.comm import Comm, Native, Ours
from tests.proof.ddp_cases import CONTEXT, Batch, Pool, Tensors, pool

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses torch.jit, which is deprecated
    from torch.distributed.optim import ZeroRedundancyOptimizer

BATCH = 12  # samples in a step on all ranks together: 1 to 4 divide it
PIXELS = 61  # of an image's 64: no number of ranks divides it

LOSSES = {torch.float64: 1e-10, torch.float32: 1e-5}  # how far they may be from a reference's
WEIGHTS = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest weight
COMMS: dict[str, Callable[[], Comm]] = {"ours": lambda: Ours(), "native": lambda: Native()}
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, {"lr": 0.1, "momentum": 0.9}),
    # Some gradients of attention are zeros but for rounding: a step must not depend on those.
    "adamw": (AdamW, {"lr": 3e-3, "eps": 1e-5}),
}


class Task(NamedTuple):
    """What is trained; there is one run alone, and one in each of torch's ways, of each."""

    model: str
    optimizer: str
    dtype: torch.dtype


# Every two values meet.
TASKS = [
    Task("odd", "sgd", torch.float64),
    Task("odd", "adamw", torch.float32),
    Task("gpt", "sgd", torch.float32),
    Task("gpt", "adamw", torch.float64),
]
WAYS = ["zero 1 on ddp", "zero 1", "zero 2"] + [
    f"fsdp {layout}{reshard}{prefetch}"
    for layout in ("dim0", "flat")
    for reshard in ("", ", no reshard")
    for prefetch in ("", ", no prefetch")
]


@dataclass(frozen=True)
class Case:
    """One run; `way` is one of WAYS, or one of torch's."""

    task: Task
    way: str
    comm: str = "ours"
    cap: float = 5e-3  # MiB of ZeRO's parts and of DDP's buckets: a few of them
    micro: int = 1  # backwards to a step
    quiet: bool = False  # all but the last send nothing
    steps: int = 30

    def __str__(self) -> str:
        task = f"{self.task.model}, {self.task.optimizer}, {str(self.task.dtype)[6:]}"
        micro = f"{self.micro} {'quiet ' if self.quiet else ''}micro-steps"
        return f"{self.way}: {task}, {self.comm}, cap {self.cap}, {micro}"

    @property
    def twins(self) -> tuple[str, str]:
        """The runs that it must be equal to."""
        return "one process", "torch's fsdp" if self.way.startswith("fsdp") else "torch's zero"


def cases(ways: list[str], ranks: int) -> list[Case]:
    """Each way with a task; on 1 to 4 ranks it meets all tasks, comms and caps.

    There are two tasks on a number of ranks; gradients are summed over one backward or two.
    """
    found = []
    for w, way in enumerate(ways):
        half = (w + ranks // 2) % 2
        task, comm = TASKS[2 * half + ranks % 2], ["ours", "native"][(w // 2 + ranks // 2) % 2]
        case = Case(task, way, comm, cap=[5e-3, 25][(w // 2 + ranks) % 2])
        found.append(replace(case, micro=1 + (half + ranks) % 2, quiet=w % 2 == 0))
    return found


def ways_of(kind: str, ranks: int) -> list[str]:
    """What is run on so many ranks: all of ZeRO; of FSDP those with prefetch, or those without."""
    if kind == "zero":
        return [way for way in WAYS if way.startswith(kind)]
    cut = [f"fsdp {layout}{kept}" for layout in ("dim0", "flat") for kept in ("", ", no reshard")]
    return [way + ", no prefetch" * ((w // 2 + ranks) % 2) for w, way in enumerate(cut)]


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


def network(task: Task, seed: int, vocab: int) -> nn.Module:
    """The model, with weights of this seed."""
    torch.manual_seed(seed)
    net = Odd() if task.model == "odd" else models.GPT(vocab, 8, 2, 2, CONTEXT)
    return net.to(task.dtype)


def vocabulary(samples: Pool) -> int:
    """How many characters there are in the text."""
    return int(samples["text"][0].max()) + 1


def share(task: Task, samples: Pool, step: int, rank: int, ranks: int) -> Batch:
    """A rank's part of a step's batch."""
    inputs, labels = samples["text" if task.model == "gpt" else "digits"]
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:BATCH]
    mine = chosen.chunk(ranks)[rank]
    found = inputs[mine]
    return found.to(task.dtype) if found.is_floating_point() else found, labels[mine]


# ---- ways to train ----


class Made(NamedTuple):
    """A model, ready to train; `quiet` is what to call before and after a backward is to be."""

    model: nn.Module
    optimizer: Optimizer
    quiet: Callable[[], Any] = nullcontext


Way = Callable[[nn.Module, Case, Comm], Made]


def alone(net: nn.Module, case: Case) -> Made:
    """One process, nothing round it."""
    kind, defaults = OPTIMIZERS[case.task.optimizer]
    return Made(net, kind(net.parameters(), **defaults))


def zero(net: nn.Module, case: Case, comm: Comm) -> Made:
    """minidist's ZeRO."""
    kind, defaults = OPTIMIZERS[case.task.optimizer]
    on_ddp = case.way.endswith("ddp")
    options = {"stage": 2 if "2" in case.way else 1, "bucket_cap_mb": case.cap, "comm": comm}
    model: nn.Module = net
    if on_ddp:
        model = minidist.DistributedDataParallel(net, bucket_cap_mb=case.cap, comm=comm)
    elif options["stage"] == 1:
        options["gradients"] = "local"
    optimizer = minidist.ZeroOptimizer(net.parameters(), kind, **options, **defaults)
    quiet = {"zero 1 on ddp": lambda: model.no_sync(), "zero 2": lambda: optimizer.no_sync()}
    return Made(model, optimizer, quiet.get(case.way, nullcontext))


def fsdp(net: nn.Module, case: Case, comm: Comm) -> Made:
    """minidist's FSDP: each block is a unit, and the root has the rest."""
    options = {
        "layout": "flat" if "flat" in case.way else "dim0",
        "reshard_after_forward": "no reshard" not in case.way,
        "prefetch": "no prefetch" not in case.way,
        "comm": comm,
    }
    for part in [*net.blocks, net]:
        minidist.fully_shard(part, **options)
    return alone(net, case)._replace(quiet=lambda: Unsynchronised(net))


def torchs_zero(net: nn.Module, case: Case, comm: Comm) -> Made:
    """torch's ZeroRedundancyOptimizer on torch's DDP."""
    kind, defaults = OPTIMIZERS[case.task.optimizer]
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), kind, **defaults)
    return Made(model, optimizer, lambda: model.no_sync())


def torchs_fsdp(net: nn.Module, case: Case, comm: Comm) -> Made:
    """torch's FSDP2, cut into the same units; it starts with each rank's own values."""
    for tensor in net.state_dict().values():
        dist.broadcast(tensor, 0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in [*net.blocks, net]:
        fully_shard(part, mesh=mesh)
    net.set_force_sum_reduction_for_comms(True)  # Gloo knows no mean
    return alone(net, case)._replace(quiet=lambda: Unsynchronised(net))


class Unsynchronised:
    """Gradients are not reduced inside; for torch's FSDP2 and ours alike."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __enter__(self) -> None:
        self.net.set_requires_gradient_sync(False)

    def __exit__(self, *_: object) -> None:
        self.net.set_requires_gradient_sync(True)


MAKE: dict[str, Way] = {"zero": zero, "fsdp": fsdp, "torch's zero": torchs_zero}
MAKE["torch's fsdp"] = torchs_fsdp


class Run(NamedTuple):
    """What came of a run."""

    losses: list[float]  # of the whole batch, or on one rank of its share
    weights: Tensors


def train(case: Case, samples: Pool, make: Way | None = None) -> Run:
    """Train on this rank, from other weights on each rank: rank 0's must win."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net = network(case.task, rank, vocabulary(samples))
    make = make or MAKE.get(case.way) or MAKE[case.way.split()[0]]
    try:
        made = make(net, case, COMMS[case.comm]())
        losses = [step(made, case, samples, number, rank, ranks) for number in range(case.steps)]
        return Run(losses, whole(net))
    except Exception as error:
        raise RuntimeError(f"rank {rank}: {case}: {error}") from error


@cache
def train_alone(task: Task, steps: int = 30) -> Run:
    """Train in this process, without any other."""
    case, net = Case(task, "one process"), network(task, 0, vocabulary(pool()))
    made = alone(net, case)
    return Run(
        [step(made, case, pool(), number, 0, 1) for number in range(steps)], net.state_dict()
    )


def step(made: Made, case: Case, samples: Pool, number: int, rank: int, ranks: int) -> float:
    """One step of training; returns the mean loss of this rank's share."""
    inputs, labels = share(case.task, samples, number, rank, ranks)
    made.optimizer.zero_grad()
    total = 0.0
    for turn, (x, y) in enumerate(
        zip(inputs.chunk(case.micro), labels.chunk(case.micro), strict=True)
    ):
        with made.quiet() if case.quiet and turn < case.micro - 1 else nullcontext():
            logits = made.model(x).flatten(0, -2)
            loss = functional.cross_entropy(logits, y.flatten()) * len(x) / len(inputs)
            loss.backward()
        total += loss.item()
    made.optimizer.step()
    return total


def whole(net: nn.Module) -> Tensors:
    """Copies of all weights, gathered."""
    if any(isinstance(parameter, DTensor) for parameter in net.parameters()):
        held = net.state_dict().items()
        return {name: each.full_tensor() for name, each in held}
    return {name: each.clone() for name, each in minidist.full_state_dict(net).items()}


# ---- what is compared ----


def prove(ranks: int, wanted: list[Case]) -> dict[str, list[str]]:
    """Train every case on so many ranks; what is wrong with each, in words."""
    keys = {(case.twins[1], case.task) for case in wanted}
    twins = [Case(task, way) for way, task in sorted(keys, key=str)]

    def run(all_cases: list[Case], samples: Pool) -> list[Run]:
        return [train(case, samples) for case in all_cases]

    found = minidist.launch(run, ranks, twins + wanted, pool(), device="cpu", timeout=200)
    runs = [list(each) for each in zip(*found, strict=True)]
    known = {
        (twin.way, twin.task): together(each)
        for twin, each in zip(twins, runs[: len(twins)], strict=True)
    }
    known |= {("one process", case.task): train_alone(case.task) for case in wanted}
    return {
        str(case): list(complaints(case, each, known))
        for case, each in zip(wanted, runs[len(twins) :], strict=True)
    }


def together(runs: list[Run]) -> Run:
    """The mean of all ranks' losses, and the first one's weights."""
    losses = [sum(each) / len(runs) for each in zip(*(run.losses for run in runs), strict=True)]
    return Run(losses, runs[0].weights)


def complaints(case: Case, runs: list[Run], known: dict[tuple[str, Task], Run]) -> Iterator[str]:
    """What is wrong with a run, of which each rank has told its own."""
    got = together(runs)
    for rank, run in enumerate(runs):
        if not all(torch.equal(run.weights[name], each) for name, each in got.weights.items()):
            yield f"rank {rank} ends with other weights than rank 0"
    for name in case.twins:
        want, dtype = known[name, case.task], case.task.dtype
        off = loss_error(got, want)
        if not off <= LOSSES[dtype]:
            yield f"the losses, against {name}: off by {off:.1e}"
        if got.weights.keys() != want.weights.keys():
            yield f"against {name}: there are {sorted(got.weights)}, for {sorted(want.weights)}"
            continue
        off = weight_error(got, want)
        if not off <= WEIGHTS[dtype]:
            yield f"the weights, against {name}: off by {off:.1e} of the largest"
    if case.steps >= 30 and sum(got.losses[-5:]) > 0.97 * sum(got.losses[:5]):
        yield f"the losses do not fall: {got.losses[:5]}, in the end {got.losses[-5:]}"


def loss_error(got: Run, want: Run) -> float:
    """How far the losses are from what is wanted, at most; infinite where one is not a number."""
    off = [abs(x - y) / max(1.0, abs(y)) for x, y in zip(got.losses, want.losses, strict=True)]
    return max(each if each == each else float("inf") for each in off)


def weight_error(got: Run, want: Run) -> float:
    """How far the weights are from what is wanted, in parts of the largest."""
    largest = max(float(each.abs().max()) for each in want.weights.values())
    off = [float((got.weights[name] - each).abs().max()) for name, each in want.weights.items()]
    return max(each if each == each else float("inf") for each in off) / largest
