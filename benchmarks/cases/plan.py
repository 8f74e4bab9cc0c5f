"""`minidist.plan` beside what is measured: time, bytes and memory of a step, under each strategy.

First the rates of this machine, while as many ranks as train all do the same: operations a second
in forward and backward, of one model; a copy's bandwidth; and a link, fitted to the ring. Then the
small GPT in some sizes, over that link and over an emulated one.

The machine's own link is no network: the cores that compute carry the messages too, so nothing
overlaps, and the prediction is `sequential`. The emulated link leaves the cores alone, and the
prediction is `overlapped`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import AdamW

import minidist
from benchmarks.cases.zero import RATE, ours
from benchmarks.harness import turns
from benchmarks.harness.memory import Case, largest
from benchmarks.harness.record import Row, worst_of_ranks
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import MIB, Scope, Setup
from benchmarks.harness.training import Config, Trained, Training, Way, bucket_mib, build
from benchmarks.harness.turns import Repeats, Turns
from course.training.models import GPT
from minidist.collectives.fit import Measurement, fit
from minidist.comm.comm import Comm, Counted
from minidist.comm.slowed import Slowed
from minidist.memory.state import FP32
from minidist.planner.hardware import Accelerator
from minidist.planner.planner import Forecast, plan
from minidist.planner.sizes import Sizes
from minidist.schedule.algorithms import ring_all_reduce
from minidist.schedule.cost import Link, switch

EMULATED = Link(200e-6, 1 / 100e6)  # on which a step of the middle size communicates and computes
LINKS = ("own", "emulated")
ROWS = 8  # the vocabulary is padded to a multiple of it, as is custom: ranks share rows evenly
FITTED = (64 << 10, 512 << 10, 4 * MIB)  # bytes of the all-reduces that the link is fitted to
FLAGS = 1 << 10  # bytes: flags are fewer, and buckets and units more
STRATEGIES = ("single", "ddp", "zero1", "zero2", "fsdp")


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """The machine's rates, then a row for each width, link and strategy."""
    widths, strategies = scope.widths or (scope.width,), strategies_on(setup.ranks)
    if setup.ranks > 2:
        widths = widths[len(widths) // 2 :][:1]
    middle = Config(widths[len(widths) // 2])
    found = setup.launch(rates, middle, scope.rounds, scope.copy_bytes >> 4, timeout=clock.left())
    machine = Machine(**worst_of_ranks(tuple(found)))
    yield {"what": "machine", **machine.row()}
    cases: list[Case] = [(name, Config(width)) for width, name in product(widths, strategies)]
    peaks = largest(memory_ways, cases, setup, scope.tries, clock)
    for width in widths:
        config = Config(width)
        of_ranks = setup.launch(steps, config, scope.rounds, timeout=clock.left())
        seconds = turns.quartiles([timed for timed, _ in of_ranks])
        for link, name in product(LINKS, strategies):
            want = forecast(config, setup.ranks, name, machine.on(link))
            sent, flags = max(counted[name] for _, counted in of_ranks)
            times = want.overlapped if link == "emulated" else want.sequential
            row: Row = {"what": "plan", "link": link, "width": width, "way": name}
            row |= compared("ms", seconds[f"{name}, {link}"][1] * 1e3, times * 1e3)
            row |= compared("peak_bytes", peaks[name, config]["peak_bytes"], want.peak)
            row |= {"sent_bytes": sent - flags, "predicted_sent_bytes": want.sent}
            row |= {"flag_bytes": flags}
            parts = {
                "compute": want.compute,
                "memory": want.memory_traffic,
                "communication": want.communication,
            }
            yield {
                **row,
                "quartiles_ms": turns.milliseconds(seconds[f"{name}, {link}"]),
                "predicted_parts_ms": {key: round(1e3 * each, 3) for key, each in parts.items()},
                "binds": want.binds,
                "rounds": scope.rounds,
            }


def strategies_on(ranks: int) -> tuple[str, ...]:
    """Hybrid sharding needs two ranks for each of its dimensions."""
    return (*STRATEGIES, "hsdp") if ranks >= 4 else STRATEGIES


def compared(name: str, measured: float, predicted: float) -> Row:
    """What was measured, what was predicted, and the factor between them."""
    return {
        name: float(f"{measured:.4g}") if name == "ms" else measured,
        f"predicted_{name}": float(f"{predicted:.4g}") if name == "ms" else predicted,
        f"{name}_factor": round(predicted / measured, 3),
    }


# ---- what this machine reaches ----


@dataclass
class Machine:
    """Rates of each rank, while all of them work."""

    matmul: float  # operations a second of one large product
    seconds: float  # of forward and backward of the model that the rate is taken from
    operations: float  # of that
    copy: float  # seconds a byte, read and written
    alpha: float
    beta: float

    def row(self) -> Row:
        """For the record."""
        rate = self.operations / self.seconds
        return {
            "matmul_gflops": round(1e-9 * self.matmul, 2),
            "training_gflops": round(1e-9 * rate, 2),
            "utilization": round(rate / self.matmul, 3),
            "copy_gb_per_second": round(1e-9 / self.copy, 2),
            "link_us": round(1e6 * self.alpha, 1),
            "link_gb_per_second": round(1e-9 / self.beta, 3),
            "emulated_us": 1e6 * EMULATED.alpha,
            "emulated_gb_per_second": 1e-9 / EMULATED.beta,
        }

    def on(self, link: str) -> Accelerator:
        """This machine with one of the links, as a plan wants it."""
        found = EMULATED if link == "emulated" else Link(self.alpha, self.beta)
        rate = 1 / found.beta
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Accelerator(
            name=f"a core, link {link}",
            flops=self.operations / self.seconds,  # what training reaches, so all of it is used
            utilization=1.0,
            memory=memory,
            bandwidth=1 / self.copy,
            nvlink=rate,
            network=rate,
            nvlink_latency=found.alpha,
            network_latency=found.alpha,
        )


def rates(config: Config, rounds: int | None, nbytes: int) -> Row:
    """On a rank: the fields of a `Machine`; the slowest rank's times, as all wait for it."""
    os.environ["MINIDIST_CHECK"] = "0"
    tokens = config.batch * config.tokens
    left, right = torch.randn(tokens, config.width), torch.randn(config.width, 4 * config.width)
    here, there = torch.zeros(nbytes // 4), torch.empty(nbytes // 4)
    comm = minidist.Ours(algorithm="ring")
    tensors = {f"{size}": torch.zeros(size // 4) for size in FITTED}
    ways: dict[str, Callable[[], object]] = {
        "matmul": lambda: torch.mm(left, right),
        "training": Training(no_update, config).step,
        "copy": lambda: there.copy_(here),
        **{name: partial(comm.all_reduce, each) for name, each in tensors.items()},
    }
    timed = {}
    for name, way in ways.items():  # one after the other: each is what all ranks do
        taken = turns.take_turns({name: way}, Repeats(3, rounds or 9))
        start_to_end = [end - start for start, end in taken.intervals[name]]
        middle = sorted(start_to_end)[len(start_to_end) // 2] / taken.calls
        timed[name] = turns.max_over_ranks(middle)
    measured = [Measurement(ring_all_reduce(comm.ranks), n, timed[f"{n}"]) for n in FITTED]
    link = fit(measured, switch).link
    return {
        "matmul": 2 * tokens * config.width * 4 * config.width / timed["matmul"],
        "seconds": timed["training"],
        "operations": 3 * config.batch * sizes(config).operations,
        "copy": timed["copy"] / (2 * here.nbytes),
        "alpha": link.alpha,
        "beta": link.beta,
    }


class Nothing:
    """What updates no parameter, so that a step is forward and backward alone."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.module.zero_grad()

    def step(self) -> None:
        """Leave all as it is."""


def no_update(module: GPT) -> Trained:
    """Forward and backward alone, on this rank."""
    updates: Any = Nothing(module)
    return padded(module), updates


# ---- the strategies ----


def padded(module: GPT) -> GPT:
    """The model with as many rows in its embedding as ranks can share evenly."""
    old = module.token.weight
    more = old.new_zeros(-len(old) % ROWS, old.shape[1])
    module.token.weight = module.head.weight = nn.Parameter(torch.cat([old.detach(), more]))
    return module


def sizes(config: Config) -> Sizes:
    """Of the model that `config` describes."""
    ids = torch.zeros(1, config.tokens, dtype=torch.int64)
    return Sizes.of(padded(build(config, "meta")), ids)


def cap(config: Config) -> float:
    """MiB of a bucket, so that there are several."""
    return bucket_mib(padded(build(config, "meta")))


def forecast(config: Config, ranks: int, strategy: str, gpu: Accelerator) -> Forecast:
    """What `plan` says; for hybrid sharding as if two ranks were a node."""
    gpu = gpu._replace(per_node=2 if strategy == "hsdp" else ranks)
    found = plan(
        sizes(config), gpu, ranks, batch=config.batch, policy=FP32, bucket_cap_mb=cap(config)
    )
    return found.forecasts[strategy]


def ways(link: str, counted: dict[str, list[Counted]] | None = None) -> dict[str, Way]:
    """On a rank: the strategies over a link; what they send is counted in `counted`."""
    kept = {} if counted is None else counted

    def comm(strategy: str, group: dist.ProcessGroup | None = None) -> Comm:
        inner = Counted(minidist.Ours(group, algorithm="ring"))
        kept.setdefault(strategy, []).append(inner)
        return Slowed(inner, EMULATED) if link == "emulated" else inner

    def ddp(module: GPT) -> Trained:
        mib = bucket_mib(module)
        options: dict[str, Any] = {"bucket_cap_mb": mib, "first_bucket_mb": mib}
        wrapped = minidist.DistributedDataParallel(
            module, gradient_as_bucket_view=True, comm=comm("ddp"), **options
        )
        return wrapped, AdamW(module.parameters(), RATE)

    def zero(module: GPT, stage: int) -> Trained:
        return ours(stage, local=True, comm=comm(f"zero{stage}"))(module)

    def sharded(module: GPT, strategy: str) -> Trained:
        between: Any = comm(strategy) if strategy == "fsdp" else pair()
        for each in (*module.blocks, module):
            minidist.fully_shard(each, comm=between)
        return module, AdamW(module.parameters(), RATE)

    def pair() -> tuple[Comm, Comm]:
        names = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names)
        replicate, shard = (comm("hsdp", mesh.get_group(name)) for name in names)
        return replicate, shard

    every: dict[str, Way] = {
        "single": lambda module: (module, AdamW(module.parameters(), RATE)),
        "ddp": ddp,
        "zero1": lambda module: zero(module, 1),
        "zero2": lambda module: zero(module, 2),
        "fsdp": lambda module: sharded(module, "fsdp"),
        "hsdp": lambda module: sharded(module, "hsdp"),
    }
    chosen = strategies_on(dist.get_world_size())
    return {name: lambda module, way=every[name]: way(padded(module)) for name in chosen}  # type: ignore[misc]


def memory_ways(precision: str) -> dict[str, Way]:
    """On a rank: the strategies whose memory is measured."""
    return ways("own")


def steps(config: Config, rounds: int | None) -> tuple[Turns, dict[str, tuple[int, int]]]:
    """On a rank: turns of "STRATEGY, LINK"; the bytes that a step sends, and those of its flags."""
    os.environ["MINIDIST_CHECK"] = "0"
    counted: dict[str, list[Counted]] = {}
    every = {
        f"{name}, {link}": Training(way, config).step
        for link in LINKS
        for name, way in ways(link, counted if link == "own" else None).items()
    }
    sent = {}
    for name in strategies_on(dist.get_world_size()):
        step, comms = every[f"{name}, own"], counted.get(name, [])
        step()  # the first one lays out DDP's buckets anew
        for each in comms:
            each.clear()
        step()
        sent[name] = sum(each.bytes_sent for each in comms), sum(map(flags, comms))
    return turns.take_turns(every, Repeats(1, rounds or 9)), sent


def flags(comm: Counted) -> int:
    """Bytes sent to tell which parameters each rank has used, a number for each of them."""
    small = sum(call.nbytes for call in comm.calls if call.nbytes < FLAGS)
    return 2 * (comm.ranks - 1) * small // comm.ranks
