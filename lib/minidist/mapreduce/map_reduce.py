"""MapReduce (Dean and Ghemawat, OSDI 2004) on the processes of one host, small enough to be read.

A map task turns one input into pairs (key, value) and sorts them into one box for each reducer.
A reduce task takes its boxes from all map tasks, brings equal keys together, and reduces the values
of each key to one. Between the two lies the shuffle: here, files in a folder, one for each box.

In the paper a map task's boxes lie on its worker's own disk, and are lost with the machine; so its
finished map tasks are done again too. Here they outlive the worker, since only a process can die.
"""

import pickle
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Number
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from minidist.launch import pickling
from minidist.launch.cleanup import Interrupts, job
from minidist.launch.launch import LONGEST
from minidist.mapreduce.workers import WorkerPool

Ints = np.ndarray[Any, np.dtype[np.int64]]
Pair = tuple[Hashable, Any]
Mapper = Callable[[Any], Iterable[Pair]]
Reducer = Callable[[Any, list[Any]], Any]
Partition = Callable[[Any, int], int]


@dataclass(frozen=True, eq=False)
class MapReduced:
    """A job's results, and its traffic."""

    parts: list[dict[Any, Any]]  #: what each reducer made, in the order of the inputs
    emitted: int  #: pairs that the mapper gave, before the combiner
    records: Ints  #: for each input and reducer, the pairs that went there
    nbytes: Ints  #: the bytes of those pairs, pickled
    shipped: int  #: bytes of functions and inputs that went to workers
    returned: int  #: bytes of results that came back
    recomputed: tuple[str, ...]  #: tasks done again, since their worker died or they raised

    @property
    def whole(self) -> dict[Any, Any]:
        """All reducers' results together; ValueError if several of them have one key."""
        whole = {key: value for part in self.parts for key, value in part.items()}
        if len(whole) < sum(map(len, self.parts)):
            raise ValueError("map_reduce: several reducers were given the same key by `partition`")
        return whole


def hash_partition(key: object, reducers: int) -> int:
    """The reducer for a key: its hash, modulo their number. The same in every process and run."""
    if isinstance(key, str):  # Python's own hash of it is another one in each interpreter
        number = zlib.crc32(key.encode("utf-8", "surrogatepass"))
    elif isinstance(key, tuple):
        number = zlib.crc32(repr([hash_partition(part, 2**61) for part in key]).encode())
    elif isinstance(key, Number) and key == key:  # a NaN equals nothing, so it is no key
        number = hash(key)  # not salted, and equal for 1 and 1.0
    else:
        raise TypeError(
            f"map_reduce: key {key!r}: expected a str, a number or a tuple of these; for other "
            "keys pass a `partition` of your own"
        )
    return number % reducers


def map_reduce(
    inputs: Iterable[Any],
    mapper: Mapper,
    reducer: Reducer,
    *,
    reducers: int = 1,
    combiner: Reducer | None = None,
    partition: Partition = hash_partition,
    workers: int = 2,
    attempts: int = 3,
    timeout: float = 60.0,
) -> MapReduced:
    """Map every input, shuffle by key, reduce; on `workers` processes.

    The results depend on the inputs and their order alone, not on workers, which may die: a task
    may be done more than once, so the functions must be pure. They may be defined in a notebook's
    cell; they travel by cloudpickle. What they print is not shown.

    Args:
        inputs: one map task each.
        mapper: mapper(input) gives pairs (key, value).
        reducer: reducer(key, values) gives one value. `values` is in the order of inputs.
        combiner: as `reducer`; called in the map task on its own values of a key, so that one pair
            is shuffled instead of many.
        partition: partition(key, reducers) gives the number of a key's reducer.
        attempts: how often a task may fail (raise, or lose its worker) until the job gives up.
        timeout: seconds for the whole job.

    Raises:
        TaskError: a task failed `attempts` times, or was not done in time; what it raised is the
            `__cause__`.
    """
    if not isinstance(inputs, Iterable):
        raise TypeError(f"inputs: expected an iterable, one item per map task, got {inputs!r}")
    inputs = list(inputs)
    for name, value in {"reducers": reducers, "workers": workers, "attempts": attempts}.items():
        if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if not (isinstance(timeout, int | float) and 0 < timeout <= LONGEST):
        raise ValueError(f"timeout must be between 0 and {LONGEST:g} s, got {timeout!r}")
    with Interrupts() as interrupts, job(interrupts) as ours, interrupts.allowed():
        pool = WorkerPool(ours, min(workers, max(len(inputs), reducers)), attempts, timeout)
        map_task = partial(_map_task, mapper, combiner, partition, reducers, ours.folder)
        mapped = pool.run("map", map_task, inputs)
        maps = [range(len(inputs))] * reducers  # each reducer has a box from all of them
        parts = pool.run("reduce", partial(_reduce_task, reducer, ours.folder), maps)
    emitted = [pairs for pairs, _ in mapped]
    boxes = np.array([sizes for _, sizes in mapped], dtype=np.int64).reshape(-1, reducers, 2)
    return MapReduced(
        parts,
        emitted=sum(emitted),
        records=boxes[:, :, 0],
        nbytes=boxes[:, :, 1],
        shipped=pool.shipped,
        returned=pool.returned,
        recomputed=tuple(pool.redone),
    )


# [tasks]
def _map_task(
    mapper: Mapper,
    combiner: Reducer | None,
    partition: Partition,
    reducers: int,
    folder: Path,
    task: int,
    item: Any,
) -> tuple[int, list[tuple[int, int]]]:
    pairs = list(mapper(item))
    emitted = len(pairs)
    if combiner:
        pairs = [(key, combiner(key, values)) for key, values in _grouped(pairs).items()]
    boxes: list[list[Pair]] = [[] for _ in range(reducers)]
    for key, value in pairs:
        boxes[_checked(partition(key, reducers), key, reducers)].append((key, value))
    blobs = [pickling.dumps(box) for box in boxes]
    for reduce_task, blob in enumerate(blobs):
        (folder / f"{task}-for-{reduce_task}").write_bytes(blob)
    return emitted, [(len(box), len(blob)) for box, blob in zip(boxes, blobs, strict=True)]


def _reduce_task(reducer: Reducer, folder: Path, task: int, maps: Sequence[int]) -> dict[Any, Any]:
    boxes = (pickle.loads((folder / f"{m}-for-{task}").read_bytes()) for m in maps)
    shuffled = _grouped(pair for box in boxes for pair in box)
    return {key: reducer(key, values) for key, values in shuffled.items()}


def _grouped(pairs: Iterable[Pair]) -> dict[Hashable, list[Any]]:
    groups: dict[Hashable, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


# [end]


def _checked(reducer: object, key: object, reducers: int) -> int:
    if not isinstance(reducer, SupportsIndex) or not 0 <= index(reducer) < reducers:
        raise ValueError(f"partition({key!r}, {reducers}) gave {reducer!r}, which is no reducer")
    return index(reducer)
