"""`minidist.plan` beside what is measured: time, bytes and memory of a step, under each strategy.

The small GPT trains in some sizes, over the machine's own link and over an emulated one. In turns
with that come the rates of the machine, while all ranks do the same: operations a second in forward
and backward, a copy's bandwidth, and the link, fitted to the ring.

How much of the peak training reaches depends on the model: a small one spends its time between the
operations. A plan is given that utilization; `predicted_ms` has the one of each model, and
`predicted_ms_at_one_rate` that of the middle size for all, as if there were but one.

The machine's own link is no network: the cores that compute carry the messages too, so nothing
overlaps, and the prediction is `sequential`. On the emulated link waiting overlaps with computing,
and the prediction is `overlapped`; but each call is also made on the own link, so what that takes
of the cores is added.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock, in_each_setup
from benchmarks.harness.setups import MIB, Scope, Setup
from benchmarks.harness.training import Config, Trained, Training, Way, bucket_mib, build
from benchmarks.harness.turns import Repeats, Turns, digits
from course.training.models import GPT
from minidist.collectives.fit import Measurement, fit
from minidist.comm.comm import Comm
from minidist.comm.counted import Counted
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
PRODUCT, CALLS = (256, 256, 1024), 10  # rows, inputs and outputs; in a turn
Seconds = dict[str, list[float]]  # quartiles, by what was timed
FLAGS = 1 << 10  # bytes: flags are fewer, and buckets and units more
STRATEGIES = ("single", "ddp", "zero1", "zero2", "fsdp")


@in_each_setup
def measure(setup: Setup, scope: Scope, clock: Clock) -> Iterator[Row]:
    """For each width this machine's rates, and a row for each link and strategy."""
    widths, strategies = scope.widths or (scope.width,), strategies_on(setup.ranks)
    if setup.ranks > 2:
        widths = widths[len(widths) // 2 :][:1]
    configs = [Config(width) for width in widths]
    cases: list[Case] = [(name, config) for config, name in product(configs, strategies)]
    peaks = largest(memory_ways, cases, setup, scope.tries, clock)
    times, sent = {}, {}
    for config in configs:
        nbytes = scope.copy_bytes >> 4
        found = setup.launch(steps, config, scope.rounds, nbytes, timeout=clock.left())
        times[config] = turns.quartiles([timed for timed, _ in found])
        sent[config] = found[0][1]
    middle = rates(configs[len(configs) // 2], setup.ranks, times, scope)
    for config in configs:
        machine = rates(config, setup.ranks, times, scope)
        yield {"what": "machine", "width": config.width, **machine.row()}
        for link, name in product(LINKS, strategies):
            measured = times[config][f"{name}, {link}"]
            want, time = predicted(config, setup.ranks, name, machine, link)
            _, at_one_rate = predicted(
                config, setup.ranks, name, replace(machine, training=middle.training), link
            )
            counted, flags = sent[config][name]
            row: Row = {"what": "plan", "link": link, "width": config.width, "way": name}
            row |= compared("ms", digits(1e3 * measured[1]), digits(1e3 * time))
            row |= {"predicted_ms_at_one_rate": digits(1e3 * at_one_rate)}
            row |= compared("peak_bytes", peaks[name, config]["peak_bytes"], want.peak)
            row |= {"sent_bytes": counted - flags, "predicted_sent_bytes": want.sent}
            row |= {"flag_bytes": flags, "quartiles_ms": turns.milliseconds(measured)}
            parts = {
                "compute": want.compute,
                "memory": want.memory_traffic,
                "communication": want.communication,
            }
            row |= {"predicted_parts_ms": {key: digits(1e3 * n) for key, n in parts.items()}}
            yield {**row, "binds": want.binds, "rounds": scope.rounds}


def strategies_on(ranks: int) -> tuple[str, ...]:
    """Hybrid sharding needs two ranks for each of its dimensions."""
    return (*STRATEGIES, "hsdp") if ranks >= 4 else STRATEGIES


def compared(name: str, measured: float, predicted: float) -> Row:
    """What was measured, what was predicted, and the factor between them."""
    factor = digits(predicted / measured)
    return {name: measured, f"predicted_{name}": predicted, f"{name}_factor": factor}


# ---- what this machine reaches ----


@dataclass
class Machine:
    """Rates of each rank, while all of them work."""

    matmul: float  # operations a second of one large product
    training: float  # operations a second of forward and backward
    bandwidth: float  # bytes a second, read and written
    link: Link

    def row(self) -> Row:
        """For the record."""
        return {
            "matmul_gflops": digits(1e-9 * self.matmul),
            "training_gflops": digits(1e-9 * self.training),
            "copy_gb_per_second": digits(1e-9 * self.bandwidth),
            "own_link": {"us": digits(1e6 * self.link.alpha), "gb": digits(1e-9 / self.link.beta)},
            "emulated_link": {"us": 1e6 * EMULATED.alpha, "gb": 1e-9 / EMULATED.beta},
        }

    def on(self, name: str) -> Accelerator:
        """This machine with one of the links, as a plan wants it; all of the rate is used.

        It is of no generation whose NCCL is known: collectives take what rings take on the link.
        """
        link = EMULATED if name == "emulated" else self.link
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        speed, late = 1 / link.beta, link.alpha
        gpu = Accelerator("a core", self.training, memory, self.bandwidth, speed, speed)
        return gpu._replace(utilization=1.0, nvlink_latency=late, network_latency=late)


def rates(config: Config, ranks: int, times: dict[Config, Seconds], scope: Scope) -> Machine:
    """From the medians of what was timed beside the strategies."""
    seconds = {name: parts[1] for name, parts in times[config].items()}
    measured = [
        Measurement(ring_all_reduce(ranks), size, seconds[f"all-reduce {size}"] / CALLS)
        for size in FITTED
    ]
    return Machine(
        matmul=2 * math.prod(PRODUCT) * CALLS / seconds["matmul"],
        training=3 * config.batch * sizes(config).operations / seconds["alone"],
        bandwidth=2 * (scope.copy_bytes >> 4) / seconds["copy"],
        link=fit(measured, switch).link,
    )


def machine_ways(config: Config, nbytes: int) -> dict[str, Callable[[], object]]:
    """On a rank: what shows its rates. "alone" is forward and backward."""
    left, right = torch.randn(PRODUCT[:2]), torch.randn(PRODUCT[1:])
    here, there = torch.zeros(nbytes // 4), torch.empty(nbytes // 4)
    comm = minidist.Ours(algorithm="ring")

    def reduce(tensor: torch.Tensor) -> None:
        work = comm.all_reduce(tensor, async_op=True)  # in another thread, as in training
        assert work is not None
        work.wait()

    def several(call: Callable[[], object]) -> None:
        for _ in range(CALLS):
            call()

    return {
        "matmul": partial(several, lambda: torch.mm(left, right)),
        "copy": lambda: there.copy_(here),
        "alone": Training(no_update, config).step,
        **{
            f"all-reduce {size}": partial(several, partial(reduce, torch.zeros(size // 4)))
            for size in FITTED
        },
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
    how: dict[str, Any] = {"policy": FP32, "gradient_as_bucket_view": True, "foreach": False}
    found = plan(sizes(config), gpu, ranks, batch=config.batch, bucket_cap_mb=cap(config), **how)
    return found.forecasts[strategy]


def predicted(
    config: Config, ranks: int, strategy: str, machine: Machine, link: str
) -> tuple[Forecast, float]:
    """What `plan` says, and the seconds of a step."""
    own = forecast(config, ranks, strategy, machine.on("own"))
    if link == "own":
        return own, own.sequential
    found = forecast(config, ranks, strategy, machine.on(link))
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


def steps(
    config: Config, rounds: int | None, nbytes: int
) -> tuple[Turns, dict[str, tuple[int, int]]]:
    """On a rank: turns of "STRATEGY, LINK"; the bytes that a step sends, and those of its flags.

    The machine's rates are timed in the same rounds, so that both see it equally busy.
    """
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
    timed = turns.take_turns({**machine_ways(config, nbytes), **every}, Repeats(1, rounds or 9))
    return timed, sent


def flags(comm: Counted) -> int:
    """Bytes sent to tell which parameters each rank has used, a number for each of them."""
    small = sum(call.nbytes for call in comm.calls if call.nbytes < FLAGS)
    return 2 * (comm.ranks - 1) * small // comm.ranks
