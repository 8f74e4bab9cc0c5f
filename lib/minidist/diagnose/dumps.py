"""Dumps of PyTorch's own flight recorder, as records of ranks.

NCCL's watchdog writes one for each rank at a timeout, to the file whose name begins as
TORCH_FR_DUMP_TEMP_FILE says and ends in the rank. It is a pickle of plain values, no classes.

[Note: what a dump tells] The calls of all groups with their tensors and Python frames, but no roots
or operations, and not where a rank stands now. Gloo's do not tell who is in a group. Calls that
NCCL coalesces share a number, and only the last entry, "coalesced", has their state. Messages
between two ranks are left out: what is coalesced, as in a pipeline, has no state of its own.
"""

import json
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from minidist.diagnose.recorder import KEPT
from minidist.diagnose.records import Rank, RecordedCall
from minidist.launch.outcome import Frame

VERSION = "2."  # of the format: PyTorch 2.13 writes 2.10
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64"}
DTYPES |= {"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"}
DEFAULT = "default_pg"  # description of the group of all ranks


@dataclass(frozen=True)
class Dump:
    """What a rank has dumped. Its calls do not know yet who is in their groups."""

    time: float
    groups: dict[str, list[int]]  # name → members, as far as they are told
    calls: list[dict[str, Any]]
    stack: list[Frame]  # of the last call


def read_dumps(places: Sequence[str | os.PathLike[str]]) -> list[Rank]:
    """The ranks that have written these dumps; of a folder, all files whose names end in a rank."""
    files: dict[int, Path] = {}
    for file in sorted(file for place in places for file in _files(Path(place))):
        if not (number := re.search(r"\d+$", file.name)):
            raise ValueError(f"diagnose: {file}: expected a dump, whose name ends in its rank")
        if other := files.get(int(number[0])):
            raise ValueError(
                f"diagnose: {other} and {file} are both of rank {int(number[0])}: "
                "name the dumps of one run alone"
            )
        files[int(number[0])] = file
    dumps = {rank: _load(files[rank]) for rank in sorted(files)}
    members = _Members(dumps)
    return [
        Rank(rank, 0, "dumped", "", dump.time, members.join(rank, dump), dump.stack)
        for rank, dump in dumps.items()
    ]


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    files = [file for file in place.glob("*[0-9]") if file.is_file()]
    if not files:
        raise FileNotFoundError(f"diagnose: no rank has recorded in {place.absolute()}")
    return files


class _Plain(pickle.Unpickler):
    """Refuses a file that asks for a class or a function, before it acts."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _load(file: Path) -> Dump:
    try:
        with file.open("rb") as opened:
            dump = _Plain(opened).load()
        if not str(dump["version"]).startswith(VERSION):
            raise ValueError(f"its format is {dump['version']}, this reads {VERSION}x")
        groups = {name: _ranks(about["ranks"]) for name, about in dump["pg_config"].items()}
        entries = [each for each in dump["entries"] if not each.get("is_p2p")]
        frames = entries[-1].get("frames", []) if entries else []
        stack = [(str(f["filename"]), int(f["line"]), str(f["name"]), None) for f in frames]
        stack = [call for call in stack if call[0] != "<string>"]  # of `python -c`, or a launcher
        return Dump(file.stat().st_mtime, groups, _calls(entries), stack[::-1])
    except Exception as error:  # there is none that a damaged pickle does not raise
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"diagnose: {file} is no dump of PyTorch's flight recorder: {why}"
        ) from error


def _calls(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that are not done, and some before them."""
    calls: dict[tuple[str, int], dict[str, Any]] = {}
    for each in entries:
        group, number = each["process_group"], each["collective_seq_id"]
        name = each["profiling_name"].rpartition(":")[2].strip("_").replace("_base", "_single")
        side = "output" if name == "scatter" else "input"  # the other one is the root's alone
        tensors = zip(each[f"{side}_dtypes"], each[f"{side}_sizes"], strict=True)
        about = [f"{DTYPES.get(dtype, dtype.lower())} {tuple(size)}" for dtype, size in tensors]
        done = each["retired"] or each["state"] == "completed"
        state = "left" if done else "entered" if each["state"] == "started" else "queued"
        call = {"name": name, "number": number, "tensor": "".join(about[-1:]), "group": group}
        call |= {"order": each["record_id"], "time": each["time_created_ns"] / 1e9}
        if name != "coalesced":
            calls.setdefault((group, number), call)
        if (group, number) in calls:
            calls[group, number]["state"] = state
    done = [key for key, call in calls.items() if call["state"] == "left"]
    for key in done[:-KEPT]:
        del calls[key]
    return [*calls.values()]


@lru_cache(maxsize=10_000)
def _ranks(text: str) -> list[int]:
    """Members of a group; thousands of ranks have the same text, which is long."""
    return [int(rank) for rank in json.loads(text)]


class _Members:
    """Who is in each group; if no dump tells, in the default group all, in others who called."""

    def __init__(self, dumps: Mapping[int, Dump]) -> None:
        told = {id(members): members for dump in dumps.values() for members in dump.groups.values()}
        self._all = [*range(1 + max([*dumps, *(max(each, default=0) for each in told.values())]))]
        self._callers: dict[tuple[str, str], set[int]] = {}
        for rank, dump in dumps.items():
            for call in dump.calls:
                self._callers.setdefault(call["group"], set()).add(rank)
        self._names: dict[str, list[list[int]]] = {}  # name → groups of this name

    def join(self, rank: int, dump: Dump) -> list[RecordedCall]:
        """Return the calls, each with a name that its group alone has, and the members."""
        groups = {}
        for name, about in {call["group"] for call in dump.calls}:
            callers = sorted(self._callers[name, about])
            members = dump.groups.get(name) or (self._all if about == DEFAULT else callers)
            alike = self._names.setdefault(name, [])
            if members not in alike:
                alike.append(members)
            at = alike.index(members)
            groups[name, about] = f"{name}.{at}" if at else name, alike[at]
        joined = []
        for call in dump.calls:
            name, members = groups[call["group"]]
            joined.append(RecordedCall(**call | {"group": name, "members": members}))
        return joined
