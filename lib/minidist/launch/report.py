"""A launch's report on ranks that failed or hang: where each stands in the user's own code.

Ranks in the same place are named together, the odd ones first. Calls inside minidist, torch and
Python's library are left to the error's `details`.
"""

import linecache
import os
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from minidist.errors import RankError, cut, name_ranks
from minidist.launch import rank as rank_process
from minidist.launch.cleanup import Job
from minidist.launch.outcome import Died, Frame, Outcome, Raised, Returned

OURS = str(Path(__file__).parents[1])
GRADERS = str(Path(__file__).parents[2] / "course")  # a learner's own lines say more
LIBRARIES = tuple({OURS, os.path.dirname(torch.__file__), *sysconfig.get_paths().values()})
LONGEST = 12  # lines of a message; the rest is in `details`
CAUSE = 100_000  # characters of an exception that is kept as the cause, which Python prints whole
QUIET = 10.0  # seconds until it is worth a word
BETWEEN = 1.0  # seconds between two looks
STILL = 5  # looks in a row at which ranks that wait for one that has returned are given up
WAKES, COMPUTES = 8, 0.05  # times and seconds of a rank called still; at a barrier it wakes 5 times
REPLY = 0.5  # seconds that the ranks have to say where they stand
C10D = "torch/distributed/distributed_c10d.py"
COMPARED = ("all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")
CALLER = rank_process.__file__.encode("ascii", "backslashreplace").decode()  # as faulthandler does

Outcomes = Sequence[Outcome | None]  # one per rank; None: not ended yet
Moved = tuple[int, float]  # wakes and seconds


def failure(outcomes: Outcomes) -> RankError | None:
    """The error to raise if a rank failed.

    To blame is the earliest failure. An echo, such as a broken connection, is blamed only if there
    is nothing else: it is how the peers of a failed rank learn of it, often before the launcher.
    """
    failed = {r: each for r, each in enumerate(outcomes) if isinstance(each, Raised | Died)}
    if not failed:
        return None
    rank = min(failed, key=lambda r: (failed[r].echo, failed[r].when))
    outcome = failed[rank]
    if isinstance(outcome, Died):
        return RankError(f"rank {rank} {outcome.describe()}", [rank])
    alike = {r: e for r, e in failed.items() if isinstance(e, Raised) and e.like(outcome)}
    lines = [f"{name_ranks(list(alike))} raised {outcome.traces[0][0]}", ""]
    lines += where({r: each.traces[0][1] for r, each in alike.items()})
    for summary, calls in outcome.traces[1:]:
        lines += [f"which came from {summary}", *_own(calls)]
    details = "\n".join(each.describe(f"On rank {r}") for r, each in alike.items())
    error = RankError(_short(lines), [rank], details)
    if all(len(summary) <= CAUSE for summary, _ in outcome.traces):
        error.__cause__ = outcome.exception()
    return error


def hang(outcomes: Outcomes, stacks: Mapping[int, Sequence[Frame]], within: str) -> RankError:
    hung = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
    lines = [f"{name_ranks(hung)} did not end{within}"]
    if done := [rank for rank in range(len(outcomes)) if rank not in hung]:
        them = "it" if len(done) == 1 else "them"
        lines.append(f"{name_ranks(done)} had returned; {name_ranks(hung)} may wait for {them}")
    stood = {rank: stacks.get(rank, []) for rank in hung}
    lines += [*advice(stood), "", *where(stood)]
    calls = [f"Where rank {r} stood:\n{''.join(traceback.format_list(stacks[r]))}" for r in stacks]
    return RankError(_short(lines), hung, "\n".join(calls))


def waits(calls: Sequence[Frame]) -> bool:
    """True if a rank stands in a call that other ranks take part in, as far as one can see."""
    return any("distributed" in file or OURS in file for file, *_ in calls)


def advice(stacks: Mapping[int, Sequence[Frame]]) -> list[str]:
    """The thing to try if ranks stand in one collective of torch's, which compares nothing."""
    calls = {name for stack in stacks.values() for file, _, name, _ in stack if file.endswith(C10D)}
    names = calls & {*COMPARED}
    if not stacks or len(names) != 1:
        return []
    call = f"minidist.{names.pop()}"
    return [f"if all ranks made this call, their shapes may differ: {call} compares and names them"]


def where(stacks: Mapping[int, Sequence[Frame]], named: bool = False) -> list[str]:
    """The places where ranks stand; with `named` each with its ranks, even if there is one."""
    places: dict[tuple[str, ...], list[int]] = {}
    for rank, calls in stacks.items():
        places.setdefault(tuple(_own(calls)), []).append(rank)

    def waits_and_size(place: tuple[str, ...]) -> tuple[bool, int]:
        return waits(stacks[places[place][0]]), len(places[place])

    lines = []
    for place in sorted(places, key=waits_and_size):
        lines += [f"{name_ranks(places[place])}:"] if named or len(stacks) > 1 else []
        lines += place or ["  before the function began, or unknown"]
    return lines


def stacks_of(job: Job, outcomes: Outcomes, patience: float) -> dict[int, list[Frame]]:
    """Stacks of the ranks that have not ended, as far as they come within `patience` seconds."""
    hung = [r for r, outcome in enumerate(outcomes) if outcome is None]
    files = {job.processes[r].pid: job.folder / f"{r}.stack" for r in hung}
    texts = ask_for_stacks(files, rank_process.STACK_SIGNAL, patience)
    return {r: read_stack(text) for r, text in zip(hung, texts, strict=True)}


def ask_for_stacks(files: Mapping[int, Path], number: int, patience: float) -> list[str]:
    """Texts that processes append to their files on a signal that faulthandler answers."""
    before = [len(read_text(file)) for file in files.values()]
    for pid in files:
        with suppress(ProcessLookupError):  # it has just gone
            os.kill(pid, number)
    deadline = time.monotonic() + patience
    while True:
        texts = [read_text(file)[b:] for file, b in zip(files.values(), before, strict=True)]
        whole = (text.endswith((" in <module>\n", "\n  ...\n")) for text in texts)
        if all(whole) or time.monotonic() > deadline:
            return texts
        time.sleep(0.01)


def read_text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


class Patience:
    """Says of a launch in which nothing moves, long before its deadline, who waits, and where.

    Ranks stand still if between two looks none that has not ended has woken or computed, and if one
    is in a call that others take part in. Only Linux tells that of other processes. If all of them
    are, and another rank has returned, they would wait for ever.
    """

    def __init__(self, job: Job, outcomes: Outcomes, timeout: float) -> None:
        self._job, self._outcomes, self._timeout = job, outcomes, timeout
        self._next = time.monotonic() + QUIET - BETWEEN
        self._before: dict[int, Moved] = {}
        self._still = 0  # looks in a row

    def look(self) -> bool:
        """Look, if it is time to, and print what there is to say; True if no rank can go on."""
        returned = {type(each) for each in self._outcomes if each} == {Returned}
        due = time.monotonic() >= self._next
        if not (due or returned):
            return False
        pairs = zip(self._job.processes, self._outcomes, strict=True)
        now = {each.pid: _moved(each.pid) for each, outcome in pairs if outcome is None}
        before, self._before = self._before, now
        still = now.keys() == before.keys() and all(_still(before[p], now[p]) for p in now)
        self._still = self._still + 1 if still else 0
        if self._still < (1 if due else STILL):
            return False
        stacks = stacks_of(self._job, self._outcomes, REPLY)
        waiting = [waits(each) for each in stacks.values()]
        if returned and all(waiting):
            return self._still >= STILL
        if due and any(waiting):
            text = f"launch: nothing has moved for a while; after {self._timeout:g} s it is ended. "
            lines = [f"{text}Where the ranks stand:", *where(stacks, named=True), *advice(stacks)]
            print("\n".join(lines), flush=True)
        if due:
            self._next = float("inf") if any(waiting) else time.monotonic() + QUIET
        return False


def _moved(pid: int) -> Moved:
    """Count of times that a process's main thread woke by itself, and its seconds of computing."""
    try:
        stat, status = (Path(f"/proc/{pid}", name).read_text() for name in ("stat", "status"))
    except OSError:  # it has just ended, or this is no Linux
        return 0, float("nan")
    state, *fields = stat.rpartition(")")[2].split()
    if state == "D":  # in the middle of reading or writing a file
        return 0, float("nan")
    wakes = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)
    return int(wakes[1]) if wakes else 0, sum(map(int, fields[10:12])) / os.sysconf("SC_CLK_TCK")


def _still(before: Moved, now: Moved) -> bool:
    return now[0] - before[0] <= WAKES and now[1] - before[1] <= COMPUTES  # not so for NaN


def read_stack(text: str) -> list[Frame]:
    before_ours = text.split(f'  File "{CALLER}"')[0]
    calls = re.findall(r'File "(.*)", line (\d+) in (.*)', before_ours)
    return [(file, int(line), name, None) for file, line, name in reversed(calls)]


def own_calls(calls: Sequence[Frame]) -> Sequence[Frame]:
    own = [c for c in calls if not c[0].startswith((*LIBRARIES, "<frozen"))]
    own = [c for c in own if "/site-packages/" not in c[0]]  # of another process
    return [c for c in own if not c[0].startswith(GRADERS)] or own or calls[-1:]


def _own(calls: Sequence[Frame]) -> list[str]:
    lines = []
    for file, number, name, _ in own_calls(calls)[-2:]:
        lines.append(f"  {_cell(file)}, line {number}, in {name}")
        if source := linecache.getline(file, number).strip():
            lines.append(f"    {source}")
    return lines


def _cell(file: str) -> str:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cell = shell and shell.compile.format_code_name(file)
    return " ".join(cell) if cell else f'File "{file}"'


def _short(lines: Sequence[str]) -> str:
    lines = "\n".join(lines).splitlines()
    if (more := len(lines) - LONGEST) > 0:
        lines[LONGEST - 1 :] = [f"... {more + 1} lines more are in the error's `details`"]
    return "\n".join(cut(line, 1000) for line in lines)
