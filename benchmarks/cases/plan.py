"""`minidist.plan` beside what is measured: time, bytes and memory of a step, under each strategy.

First the rates of this machine, while as many ranks as train all do the same: operations a second
in forward and backward, of each model; a copy's bandwidth; and a link, fitted to the ring. Then the
small GPT in some sizes, over that link and over an emulated one.

How much of the peak training reaches depends on the model: a small one spends its time between the
operations. A plan is given that utilization; `predicted_ms` has the one of each model, and
`predicted_ms_at_one_rate` that of the middle size for all, as if there were but one.

The machine's own link is no network: the cores that compute carry the messages too, so nothing
overlaps, and the prediction is `sequential`. On the emulated link waiting overlaps with computing,
and the prediction is `overlapped`; but each call is also made on the own link, so what that takes
of the cores is added.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
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
from benchmarks.harness.record import Row
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
STEPS, ROUNDS = 3, 9
FLAGS = 1 << 10  # bytes: flags are fewer, and buckets and units more
STRATEGIES = ("single", "ddp", "zero1", "zero2", "fsdp")


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """The machine's rates, then a row for each width, link and strategy."""
    widths, strategies = scope.widths or (scope.width,), strategies_on(setup.ranks)
    if setup.ranks > 2:
        widths = widths[len(widths) // 2 :][:1]
    configs = [Config(width) for width in widths]
    middle = configs[len(configs) // 2]
    found = setup.launch(rates, configs, scope.rounds, scope.copy_bytes >> 4, timeout=clock.left())
    machine: Machine = found[0]  # alike on all ranks
    yield {"what": "machine", **machine.row()}
    cases: list[Case] = [(name, config) for config, name in product(configs, strategies)]
    peaks = largest(memory_ways, cases, setup, scope.tries, clock)
    for config in configs:
        of_ranks = setup.launch(steps, config, scope.rounds, timeout=clock.left())
        seconds = turns.quartiles([timed for timed, _ in of_ranks])
        for link, name in product(LINKS, strategies):
            measured = seconds[f"{name}, {link}"]
            want, time = predicted(config, setup.ranks, name, machine, link, config)
            _, at_one_rate = predicted(config, setup.ranks, name, machine, link, middle)
            sent, flags = max(counted[name] for _, counted in of_ranks)
            row: Row = {"what": "plan", "link": link, "width": config.width, "way": name}
            row |= compared("ms", digits(1e3 * measured[1]), digits(1e3 * time))
            row |= {"predicted_ms_at_one_rate": digits(1e3 * at_one_rate)}
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
                "quartiles_ms": turns.milliseconds(measured),
                "predicted_parts_ms": {key: digits(1e3 * each) for key, each in parts.items()},
                "binds": want.binds,
                "rounds": scope.rounds,
            }


def strategies_on(ranks: int) -> tuple[str, ...]:
    """Hybrid sharding needs two ranks for each of its dimensions."""
    return (*STRATEGIES, "hsdp") if ranks >= 4 else STRATEGIES


def compared(name: str, measured: float, predicted: float) -> Row:
    """What was measured, what was predicted, and the factor between them."""
    factor = round(predicted / measured, 3)
    return {name: measured, f"predicted_{name}": predicted, f"{name}_factor": factor}


def digits(number: float) -> float:
    """Four of them, for a record."""
    return float(f"{number:.4g}")


# ---- what this machine reaches ----


@dataclass
class Machine:
    """Rates of each rank, while all of them work."""

    matmul: float  # operations a second of one large product
    training: dict[int, float]  # width → operations a second of forward and backward
    bandwidth: float  # bytes a second, read and written
    link: Link

    def row(self) -> Row:
        """For the record."""
        return {
            "matmul_gflops": digits(1e-9 * self.matmul),
            "training_gflops": {f"{n}": digits(1e-9 * r) for n, r in self.training.items()},
            "copy_gb_per_second": digits(1e-9 * self.bandwidth),
            "own_link": {"us": digits(1e6 * self.link.alpha), "gb": digits(1e-9 / self.link.beta)},
            "emulated_link": {"us": 1e6 * EMULATED.alpha, "gb": 1e-9 / EMULATED.beta},
        }

    def on(self, name: str, rate: float) -> Accelerator:
        """This machine with one of the links, as a plan wants it; all of the rate is used."""
        link = EMULATED if name == "emulated" else self.link
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        speed = 1 / link.beta
        gpu = Accelerator("a core", rate, memory, self.bandwidth, nvlink=speed, network=speed)
        return gpu._replace(nvlink_latency=link.alpha, network_latency=link.alpha, utilization=1.0)


def rates(configs: list[Config], rounds: int | None, nbytes: int) -> Machine:
    """On a rank: how fast all are at once; of the slowest rank, since the others wait for it."""
    os.environ["MINIDIST_CHECK"] = "0"
    left, right = torch.randn(256, 256), torch.randn(256, 1024)
    here, there = torch.zeros(nbytes // 4), torch.empty(nbytes // 4)
    comm = minidist.Ours(algorithm="ring")
    tensors = {size: torch.zeros(size // 4) for size in FITTED}

    def timed(call: Callable[[], object]) -> float:
        taken = turns.take_turns({"": call}, Repeats(STEPS, rounds or ROUNDS))
        return (
            turns.max_over_ranks(median(end - start for start, end in taken.intervals[""])) / STEPS
        )

    trained = {each.width: timed(Training(no_update, each).step) for each in configs}
    measured = [
        Measurement(ring_all_reduce(comm.ranks), size, timed(partial(comm.all_reduce, tensor)))
        for size, tensor in tensors.items()
    ]
    work = {each.width: 3 * each.batch * sizes(each).operations for each in configs}
    return Machine(
        matmul=2 * left.numel() * right.shape[1] / timed(lambda: torch.mm(left, right)),
        training={width: work[width] / seconds for width, seconds in trained.items()},
        bandwidth=2 * here.nbytes / timed(lambda: there.copy_(here)),
        link=fit(measured, switch).link,
    )


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


def predicted(
    config: Config, ranks: int, strategy: str, machine: Machine, link: str, rated: Config
) -> tuple[Forecast, float]:
    """What `plan` says, and the seconds of a step, at the rate of the model `rated`."""
    rate = machine.training[rated.width]
    own = forecast(config, ranks, strategy, machine.on("own", rate))
    if link == "own":
        return own, own.sequential
    found = forecast(config, ranks, strategy, machine.on(link, rate))
    return found, found.overlapped + own.communication


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
        for _ in range(2):  # after the first one DDP lays out its buckets anew, and says so
            step()
        for each in comms:
            each.clear()
        step()
        sent[name] = sum(each.bytes_sent for each in comms), sum(map(flags, comms))
    return turns.take_turns(every, Repeats(1, rounds or ROUNDS)), sent


def flags(comm: Counted) -> int:
    """Bytes sent to tell which parameters each rank has used, a number for each of them."""
    small = sum(call.nbytes for call in comm.calls if call.nbytes < FLAGS)
    return 2 * (comm.ranks - 1) * small // comm.ranks
