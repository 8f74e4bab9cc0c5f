"""Which algorithm is the fastest here? Price them all by a model that is fitted to this machine.

The first question about a group measures a few small collectives, some tenths of a second in all.
All ranks then hold the same figures, those of the slowest rank, so all choose alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from minidist.collectives.runtime.executor import execute
from minidist.collectives.runtime.group import backends, members, wire_device
from minidist.collectives.runtime.notes import exchange_notes
from minidist.collectives.shared_memory.collectives import (
    shared_all_gather,
    shared_all_reduce,
    shared_reduce_scatter,
)
from minidist.collectives.shared_memory.segments import shared_segments
from minidist.schedule.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, segments
from minidist.schedule.cost import Measurement, Topology, fit, price, seconds, switch
from minidist.schedule.cost import shared as one_host
from minidist.schedule.program import program_of

TABLES = {"all_reduce": ALL_REDUCE, "reduce_scatter": REDUCE_SCATTER, "all_gather": ALL_GATHER}
CHOSEN = ("shared_memory", "auto")  # what `algorithm=` may name besides the tables' schedules
SIZES = (1 << 12, 1 << 17, 1 << 21)  # bytes of the tensors that are measured
WARM, TIMES = 3, 7  # runs of each

Seconds = Callable[[float], float]  # of a number of bytes


@dataclass(frozen=True, repr=False)
class Explanation:
    """Predicted times of the algorithms for one collective.

    Attributes:
        collective: "all_reduce", "reduce_scatter" or "all_gather".
        nbytes: of the tensor.
        ranks: how many there are.
        seconds: algorithm -> predicted seconds.
        basis: what the prediction rests on.
    """

    collective: str
    nbytes: int
    ranks: int
    seconds: Mapping[str, float]
    basis: str

    @property
    def choice(self) -> str:
        """The fastest; the first of the table if several are."""
        return min(self.seconds, key=self.seconds.__getitem__)

    def __repr__(self) -> str:
        """Return the table, fastest first."""
        rows = sorted(self.seconds.items(), key=lambda row: row[1])
        width = max(map(len, self.seconds))
        lines = [f"  {name:{width}} {1e3 * seconds:12.3f} ms" for name, seconds in rows]
        title = f"{self.collective} of {self.nbytes:,} bytes between {self.ranks:,} ranks"
        return "\n".join([f"{title}: {self.choice}", *lines, f"({self.basis})"])


def explain(
    nbytes: int,
    *,
    collective: str = "all_reduce",
    group: ProcessGroup | None = None,
    ranks: int | None = None,
    topology: Topology | None = None,
    device: torch.device | None = None,
) -> Explanation:
    """Say what each algorithm would take, and which of them "auto" takes.

    Either for the ranks of `group`, here: all of them must call it, and the first call measures.
    Or for any number of `ranks` on a `topology`: then nothing runs, and no process group is needed.

    Args:
        nbytes: of the tensor; of a reduce-scatter's input, of an all-gather's output.
        collective: "all_reduce", "reduce_scatter" or "all_gather".
        group: the default group if None.
        ranks: together with `topology`, or neither.
        topology: from `minidist.schedule.cost`.
        device: where the group's tensors will be; the CPU, if its backend can send from there.

    Raises:
        ValueError: an unknown collective, a negative size, only one of `ranks` and `topology`, or a
            device from which the group cannot send.
    """
    if collective not in TABLES:
        raise ValueError(f"collective must be one of {', '.join(TABLES)}, got {collective!r}")
    if nbytes < 0:
        raise ValueError(f"nbytes must be 0 or more, got {nbytes}")
    if ranks is None and topology is None:
        device = device or wire_device(group)
        if device.type not in (known := backends(group)):
            raise ValueError(
                f"device: the group moves tensors on {' and '.join(known)}, got {device}"
            )
        return calibration(group, device).explain(collective, nbytes)
    if ranks is None or topology is None:
        raise ValueError("ranks and topology go together: give both, or neither")
    prices = _prices(collective, ranks, topology)
    found = {name: each(nbytes) for name, each in prices.items()}
    return Explanation(collective, nbytes, ranks, found, f"the model: {topology.name}")


def settle(
    algorithm: str, collective: str, nbytes: int, device: torch.device, group: ProcessGroup | None
) -> str:
    """The algorithm to run: the one asked for, or for "auto" the fastest here.

    All ranks of the group must ask at the same time.
    """
    if algorithm != "auto" or nbytes == 0 or dist.get_world_size(group) == 1:
        return "ring" if algorithm == "auto" else algorithm
    return calibration(group, device).best(collective, nbytes)


def meets_first(
    algorithm: str, collective: str, nbytes: int, device: torch.device, group: ProcessGroup | None
) -> bool:
    """True if a call is known to go through shared memory, and so begins with a barrier there."""
    if algorithm == "auto":
        known = _known.get(members(group), {}).get(device.type)
        algorithm = known.best(collective, nbytes) if known else ""
    return algorithm == "shared_memory" and nbytes > 0


class Calibration:
    """Prices fitted to what was measured between the ranks of a group, on tensors on `device`."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.ranks = dist.get_world_size(group)
        self._choices: dict[tuple[str, int], str] = {}
        memory = _share_memory(group, device)
        if self.ranks == 1:
            raise ValueError("explain: one rank has nobody to send to")
        network = one_host if memory else switch
        tried = [(name, size) for name in ("ring", "tree") for size in SIZES]
        times = [_seconds(_schedule(name, size, group, device), device) for name, size in tried]
        measured = [
            Measurement(TABLES["all_reduce"][name](self.ranks), size, seconds)
            for (name, size), seconds in zip(tried, _slowest(times, group), strict=True)
        ]
        found = fit(measured, network)
        self.basis = (
            f"fitted here: {1e6 * found.link.alpha:.0f} us a message and "
            f"{1e9 * found.link.beta:.2f} ns a byte, wrong by {found.median_error:.0%} (median) "
            f"and {found.worst_error:.0%} (worst)"
        )
        topology = network(found.link)
        self.prices = {each: _prices(each, self.ranks, topology) for each in TABLES}
        for collective, table in self.prices.items() if memory else ():
            table["shared_memory"] = _line(collective, group)

    def explain(self, collective: str, nbytes: int) -> Explanation:
        """All prices."""
        seconds = {name: each(nbytes) for name, each in self.prices[collective].items()}
        return Explanation(collective, nbytes, self.ranks, seconds, self.basis)

    def best(self, collective: str, nbytes: int) -> str:
        """The fastest; remembered, since a training step comes back with the same sizes."""
        key = collective, nbytes
        if key not in self._choices:
            self._choices[key] = self.explain(collective, nbytes).choice
        return self._choices[key]


def _prices(collective: str, ranks: int, topology: Topology) -> dict[str, Seconds]:
    """Of all schedules that need no other choice; a hierarchical one needs the size of a node."""

    def double_tree(nbytes: float) -> float:
        return seconds(
            ALL_REDUCE["double_tree"](ranks, segments=segments(int(nbytes))), nbytes, topology
        )

    table = {name: each for name, each in TABLES[collective].items() if name != "hierarchical"}
    prices: dict[str, Seconds] = {n: price(each(ranks), topology) for n, each in table.items()}
    return prices | ({"double_tree": double_tree} if "double_tree" in prices else {})


_known: WeakKeyDictionary[ProcessGroup, dict[str, Calibration]] = WeakKeyDictionary()


def calibration(group: ProcessGroup | None, device: torch.device) -> Calibration:
    """What is known about a group; the first call measures, so all its ranks must make it."""
    chosen = members(group)
    known = _known.setdefault(chosen, {})
    if device.type not in known:
        known[device.type] = Calibration(chosen, device)
    return known[device.type]


def _share_memory(group: ProcessGroup, device: torch.device) -> bool:
    if device.type != "cpu":
        return False
    try:
        shared_segments(group)
    except ValueError:  # another host, or a system without futexes
        return False
    return True


def _schedule(
    name: str, nbytes: int, group: ProcessGroup, device: torch.device
) -> Callable[[], object]:
    flat = torch.zeros(nbytes // 4, device=device)
    program = program_of(
        TABLES["all_reduce"][name], dist.get_world_size(group), dist.get_rank(group)
    )
    return partial(execute, program, flat, torch.Tensor.add_, group)


def _line(collective: str, group: ProcessGroup) -> Seconds:
    """Shared memory: the seconds of a call and of a byte, as a line through the measurements."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    times = []
    for nbytes in SIZES:
        whole = torch.zeros(nbytes // 4 // ranks * ranks)
        part = whole.view(ranks, -1)[rank].clone()
        add = torch.Tensor.add_
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(shared_all_reduce, whole, add, group),
            "reduce_scatter": partial(shared_reduce_scatter, part, whole, add, group),
            "all_gather": partial(shared_all_gather, whole, part, group),
        }
        times.append(_seconds(calls[collective], whole.device))
    seconds = _slowest(times, group)
    slope, start = np.polyfit(SIZES, seconds, 1, w=1 / np.array(seconds))  # the relative error
    return lambda nbytes: max(0.0, float(start)) + max(0.0, float(slope)) * nbytes


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The median of some runs, after some that warm up: each buffer must have been touched."""
    times = []
    for _ in range(WARM + TIMES):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return median(times[WARM:])


def _slowest(times: list[float], group: ProcessGroup) -> list[float]:
    """Of each time, the slowest rank's."""
    note = {str(at): f"{seconds:.9f}" for at, seconds in enumerate(times)}
    notes = exchange_notes(note, group)
    return [max(float(each[str(at)]) for each in notes) for at in range(len(times))]
