"""The fastest algorithm here: all are priced by a model that is fitted to this machine.

The first question about a group measures a few small collectives, some tenths of a second in all.
All ranks then hold the same figures, those of the slowest rank, so all choose alike.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from minidist.collectives.fit import Measurement, fit
from minidist.collectives.runtime.executor import execute
from minidist.collectives.runtime.group import backends, flat_device, members
from minidist.collectives.runtime.notes import exchange_notes
from minidist.collectives.shared_memory import collectives as in_memory
from minidist.collectives.shared_memory.segments import shared_or_none
from minidist.launch.device import device as own_device
from minidist.schedule.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, segments
from minidist.schedule.checks import whole_number
from minidist.schedule.cost import Topology, seconds, shared, switch
from minidist.schedule.program import program_of

TABLES = {"all_reduce": ALL_REDUCE, "reduce_scatter": REDUCE_SCATTER, "all_gather": ALL_GATHER}
CHOSEN = ("shared_memory", "auto")  # what `algorithm=` may name besides the tables' schedules
SIZES = (1 << 12, 1 << 17, 1 << 21)  # bytes of the tensors that are measured
WARM, TIMES = 3, 7  # runs to warm up, and to measure


@dataclass(frozen=True, repr=False)
class Explanation:
    """Predicted times of the algorithms for one collective."""

    collective: str
    nbytes: int
    ranks: int
    seconds: Mapping[str, float]  # algorithm → predicted seconds
    basis: str  # what the prediction rests on

    @property
    def choice(self) -> str:
        """The fastest algorithm, the first of the table if several are."""
        return min(self.seconds, key=self.seconds.__getitem__)

    def __repr__(self) -> str:
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
    device: torch.device | str | None = None,
) -> Explanation:
    """Say what each algorithm would take between the ranks of `group`, and which "auto" takes.

    All of them must call it, and the first call measures.

    Args:
        nbytes: of the tensor; of a reduce-scatter's input, of an all-gather's output.
        collective: "all_reduce", "reduce_scatter" or "all_gather".
        group: the default group if None.
        device: of the tensor: what is fast on a CPU is not on a GPU; `minidist.device()` if None.

    Raises TypeError or ValueError for a size that is no whole number from 0 on, an unknown
    collective, or a device whose tensors the group does not move.
    """
    if collective not in [*TABLES]:
        raise ValueError(f"collective must be one of {', '.join(TABLES)}, got {collective!r}")
    nbytes = whole_number("nbytes", nbytes, 0)
    where = torch.device(device or own_device())
    if where.type not in (known := backends(group)):
        raise ValueError(f"device: expected {' or '.join(known)}, as the group, got {where}")
    return _calibrated(group, flat_device(where, group))(collective, nbytes)


@dataclass(frozen=True)
class Choice:
    """The algorithm that a call runs; asked when all ranks have come to it, and done all before it.

    It does not hold the call's tensors, which would then wait for the garbage collector.
    """

    collective: str
    algorithm: str  # the caller's name for it
    nbytes: int
    device: torch.device  # where the memory is that is sent
    group: ProcessGroup | None

    def name(self) -> str:
        """The algorithm; "auto" may measure first, so all ranks ask at the same time."""
        if self.algorithm != "auto":
            return self.algorithm
        if self.nbytes == 0 or dist.get_world_size(self.group) == 1:
            return "ring"
        return _calibrated(self.group, self.device)(self.collective, self.nbytes).choice

    def begins_with_barrier(self) -> bool:
        """True if the algorithm's first act is a barrier in shared memory; nothing is measured."""
        measured = self.device.type in _known.get(members(self.group), ())
        if self.nbytes == 0 or (self.algorithm == "auto" and not measured):
            return False
        return self.name() == "shared_memory"


Explain = Callable[[str, int], Explanation]  # collective, bytes
_known: WeakKeyDictionary[ProcessGroup, dict[str, Explain]] = WeakKeyDictionary()


def _calibrated(group: ProcessGroup | None, device: torch.device) -> Explain:
    """The group's predictions, made once and kept; the first call, on all ranks, measures."""
    known = _known.setdefault(members(group), {})
    if device.type not in known:
        known[device.type] = lru_cache(maxsize=None)(_calibrate(group, device))
    return known[device.type]


def _calibrate(group: ProcessGroup | None, device: torch.device) -> Explain:
    ranks = dist.get_world_size(group)
    if ranks == 1:
        raise ValueError("explain: one rank has nobody to send to")
    one_memory = device.type == "cpu" and shared_or_none(group) is not None
    network = shared if one_memory else switch
    measured = []
    for make in (ALL_REDUCE["ring"], ALL_REDUCE["tree"]):
        prog = program_of(make, ranks, dist.get_rank(group))
        for nbytes in SIZES:
            flat = torch.zeros(nbytes // 4, device=device)
            slowest = _slowest(
                partial(execute, prog, flat, torch.Tensor.add_, group), device, group
            )
            measured.append(Measurement(make(ranks), nbytes, slowest))
    fitted = fit(measured, network)
    basis = (
        f"fitted here: {1e6 * fitted.link.alpha:.0f} us a message and "
        f"{1e9 * fitted.link.beta:.2f} ns a byte, wrong by {fitted.median_error:.0%} (median) "
        f"and {fitted.worst_error:.0%} (worst)"
    )
    lines = _in_memory(group) if one_memory else {}

    def explained(collective: str, nbytes: int) -> Explanation:
        times = predicted(collective, nbytes, ranks, network(fitted.link))
        if lines:
            start, slope = lines[collective]
            times["shared_memory"] = start + slope * nbytes
        return Explanation(collective, nbytes, ranks, times, basis)

    return explained


def predicted(collective: str, nbytes: int, ranks: int, topology: Topology) -> dict[str, float]:
    times = {}
    for name, make in TABLES[collective].items():
        if name != "hierarchical":
            options = {"segments": segments(nbytes)} if name == "double_tree" else {}
            times[name] = seconds(make(ranks, **options), nbytes, topology)
    return times


def _in_memory(group: ProcessGroup | None) -> dict[str, tuple[float, float]]:
    """Shared memory: the seconds of a call and of a byte, as a line through the measurements."""
    ranks, rank, add = dist.get_world_size(group), dist.get_rank(group), torch.Tensor.add_
    times: dict[str, list[float]] = {name: [] for name in TABLES}
    for nbytes in SIZES:
        whole = torch.zeros(nbytes // 4 // ranks * ranks, device="cpu")
        part = whole.view(ranks, -1)[rank].clone()
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(in_memory.shared_all_reduce, whole, add, group),
            "reduce_scatter": partial(in_memory.shared_reduce_scatter, part, whole, add, group),
            "all_gather": partial(in_memory.shared_all_gather, whole, part, group),
        }
        for name, run in calls.items():
            times[name].append(_slowest(run, whole.device, group))
    lines = {}
    for name, each in times.items():
        slope, start = np.polyfit(SIZES, each, 1, w=1 / np.array(each))  # the relative error
        lines[name] = max(0.0, float(start)), max(0.0, float(slope))
    return lines


def _slowest(run: Callable[[], object], device: torch.device, group: ProcessGroup | None) -> float:
    """The seconds of the slowest rank, of each the fastest of some runs after some that warm up.

    What else runs on the machine only adds to them, and not alike to what is compared.
    """
    times = []
    for _ in range(WARM + TIMES):
        start = time.perf_counter()
        run()
        if device.type == "cuda":  # its own stream: on others the caller may compute
            torch.cuda.current_stream(device).synchronize()
        times.append(time.perf_counter() - start)
    notes = exchange_notes({"seconds": f"{min(times[WARM:]):.9f}"}, group)
    return max(float(each["seconds"]) for each in notes)
