"""Read what the ranks have recorded, and say what is wrong: one sentence, a table, the stacks."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidist.diagnose.recorder import LINE, STACK_SIGNAL, STATE
from minidist.errors import name_ranks
from minidist.launch.outcome import Frame
from minidist.launch.report import own_calls, read_stack, where

LONGEST = 8  # calls in the table
WAITS = ("entered", "queued")  # states of a call; others are left and failed
Row = dict[int, "Call"]  # rank → its call of this number


@dataclass(frozen=True)
class Call:
    """A rank's call of a collective."""

    state: str
    number: int
    name: str
    tensor: str
    group: str
    order: int
    time: float
    members: list[int]  # of the group

    @property
    def numbered(self) -> str:
        """The call in words, without its tensor."""
        return f"{self.name} #{self.number}"


@dataclass(frozen=True)
class Rank:
    """What is known of a rank: `state` is running, returned, raised, ended (by SIGTERM) or gone.

    Or it is echoed: the rank raised what only shows that another one has failed.
    """

    rank: int
    pid: int
    state: str
    error: str
    time: float
    calls: list[Call]
    stack: list[Frame]

    @property
    def waits(self) -> bool:
        """Whether it is in a collective."""
        return bool(self.calls) and self.calls[-1].state in WAITS

    @property
    def now(self) -> str:
        """Where it stands, for a sentence."""
        after = f"after {self.calls[-1].numbered}" if self.calls else "before any collective"
        said = {
            "echoed": f"raised {self.error}, {after}",
            "raised": f"raised {self.error}, {after}",
            "returned": f"has returned, {after}",
            "gone": f"is gone {after}: it was killed (SIGKILL, out of memory?), crashed or exited",
        }
        if self.state in said:
            return said[self.state]
        if not self.stack:
            return f"is alive {after}, its stack unknown"
        file, line, name, _ = own_calls(self.stack)[-1]
        verb = "was" if self.state == "ended" else "is"
        return f"{verb} in {name} at {os.path.basename(file)}:{line}"


# ---- what the ranks have left in the folder ----


def read(folder: str | os.PathLike[str], patience: float = 2.0) -> list[Rank]:
    """The ranks with a record in `folder`. Those that live here write down their stacks first.

    That takes microseconds, or up to `patience` seconds for a rank that the system has stopped.
    """
    path = Path(folder)
    heads = [lines[0][1] for file in path.glob("*.calls") if (lines := _lines(file))]
    if not heads:
        raise FileNotFoundError(f"diagnose: no rank has recorded anything in {path.absolute()}")
    ranks = max(heads, key=lambda head: head["time"])["ranks"]  # an earlier run may have had more
    there = sorted(head["rank"] for head in heads if head["rank"] < ranks)
    return [_read(path, rank, patience) for rank in there]


def _read(path: Path, rank: int, patience: float) -> Rank:
    (state, head), *lines = _lines(path / f"{rank}.calls")
    stack = path / f"{rank}.stack"
    if state == "running" and head["host"] == socket.gethostname():
        if head["pid"] == os.getpid() or _locked(path / f"{rank}.alive"):
            _ask(head["pid"], stack, patience)
        else:
            stack = path / f"{rank}.last"
            state = "ended" if stack.stat().st_size else "gone"
    calls = sorted((Call(state, **line) for state, line in lines), key=lambda call: call.order)
    text = stack.read_text(errors="replace").rpartition("(most recent call first):")[2]
    frames = read_stack(text)
    return Rank(rank, head["pid"], state, head["error"], head["time"], calls, frames)


def _lines(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """State and content of each line; without those that are being written."""
    found, content = [], file.read_bytes()
    for start in range(0, len(content), LINE):
        state = content[start : start + STATE].decode().strip(" \0")
        with suppress(json.JSONDecodeError):
            if state:
                found.append((state, json.loads(content[start + STATE : start + LINE])))
    return found


def _locked(file: Path) -> bool:
    """Whether the process that has locked it lives; a zombie does not."""
    with file.open("r+") as ours:
        try:
            fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _ask(pid: int, file: Path, patience: float) -> None:
    """Let a rank append its stack."""
    before = file.stat().st_size
    with suppress(ProcessLookupError):  # it has just gone
        os.kill(pid, STACK_SIGNAL)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if file.read_bytes()[before:].endswith((b" in <module>\n", b"\n  ...\n")):
            return
        time.sleep(0.01)


# ---- what is wrong ----


def sentence(ranks: Sequence[Rank]) -> str:
    """What is wrong, as far as the records tell: the first of these that holds.

    Ranks have made different calls; one is gone or has raised; one has not come where others wait.
    """
    rows = _rows(ranks)
    dead = _dead(ranks)
    if found := next(filter(None, map(_difference, rows.values())), None):
        return found
    if dead and not dead[0].waits:
        return f"rank {dead[0].rank} {dead[0].now}"
    if found := _absent({each.rank: each for each in ranks}, rows):
        return found
    if dead:
        return f"rank {dead[0].rank} {dead[0].now}"
    if waiting := [each.calls[-1] for each in ranks if each.state == "running" and each.waits]:
        return f"all ranks have come to {waiting[0].numbered}, and it is not done"
    if all(each.state == "gone" for each in ranks):
        return "all ranks are gone, and none of them waited for another"
    return "no rank waits: each has left every collective that it entered"


def _rows(ranks: Sequence[Rank]) -> dict[tuple[str, int], Row]:
    """Group, number → the calls that belong together, in the order of the first of each."""
    rows: dict[tuple[str, int], Row] = {}
    calls = [(each.rank, call) for each in ranks for call in each.calls]
    for rank, call in sorted(calls, key=lambda each: each[1].time):
        rows.setdefault((call.group, call.number), {})[rank] = call
    return rows


def _difference(row: Row) -> str | None:
    """What ranks have called differently; with all_to_all, tensors may differ."""
    names = _sides(row, lambda call: call.numbered)
    if len(names) > 1:
        return _versus(names, "at")
    [name] = names
    tensors = _sides(row, lambda call: call.tensor)
    differ = len(tensors) > 1 and "all_to_all" not in name
    return f"at {name}, {_versus(tensors, 'with')}" if differ else None


def _sides(row: Row, key: Callable[[Call], str]) -> dict[str, list[int]]:
    """What the ranks say → which of them, the fewest first."""
    sides: dict[str, list[int]] = {}
    for rank in sorted(row):
        sides.setdefault(key(row[rank]), []).append(rank)
    return dict(sorted(sides.items(), key=lambda side: (len(side[1]), -side[1][0])))


def _versus(sides: dict[str, list[int]], word: str) -> str:
    *few, (most, who) = sides.items()
    said = [f"{name_ranks(r)} {'is' if len(r) == 1 else 'are'} {word} {what}" for what, r in few]
    other = "the others" if len(who) > 1 else name_ranks(who)
    return f"{', '.join(said)}, {other} {word} {most}"


def _dead(ranks: Sequence[Rank]) -> list[Rank]:
    """Who is to blame first: who raised, who went without a word, whose exception is an echo.

    A launcher kills those who wait. If it has killed all, none of them is to blame.
    """
    kinds = ["raised", "gone", "echoed"]
    if all(each.state == "gone" for each in ranks):
        return []
    return sorted(
        (each for each in ranks if each.state in kinds),
        key=lambda each: (kinds.index(each.state), each.waits, each.time),
    )


def _absent(ranks: dict[int, Rank], rows: dict[tuple[str, int], Row]) -> str | None:
    """Who has not come to a call where others wait; first, who waits in no other call."""
    found = []
    for (group, number), row in rows.items():
        call = min(row.values(), key=lambda call: call.time)
        missing = [rank for rank in call.members if rank not in row]
        there = [ranks[rank] for rank in missing if rank in ranks]
        calls = [call for each in there for call in each.calls]
        behind = all(c.number < number for c in calls if c.group == group)  # or it is forgotten
        if missing and behind and any(each.state in WAITS for each in row.values()):
            found.append((any(each.waits for each in there), missing, call))
    if not found:
        return None
    _, missing, call = min(found, key=lambda each: each[0])
    who, first = name_ranks(missing), ranks.get(missing[0])
    now = first.now if first else "has recorded nothing"
    subject = "it" if len(missing) == 1 else f"rank {missing[0]}"
    return f"{who} never came to {call.numbered}: {subject} {now}"


# ---- all of it ----


def report(folder: str | os.PathLike[str]) -> str:
    """The sentence, the last calls with a column for each rank, and where the ranks stand."""
    ranks = read(folder)
    stacks = {each.rank: each.stack for each in ranks if each.stack}
    lines = [sentence(ranks), "", *_table(ranks), ""]
    lines += [f"rank {each.rank} {each.now}" for each in ranks if each.rank not in stacks]
    return "\n".join(lines + (where(stacks) if stacks else []))


def _table(ranks: Sequence[Rank]) -> Iterator[str]:
    cells = [["", *(f"rank {each.rank}" for each in ranks)]]
    for row in list(_rows(ranks).values())[-LONGEST:]:
        *_, most = _sides(row, lambda call: f"{call.numbered} {call.tensor}")
        calls = [row.get(each.rank) for each in ranks]
        said = [f"{c.numbered} {c.tensor}" if c else "" for c in calls]
        cells.append([most])
        for call, what in zip(calls, said, strict=True):
            cells[-1].append(call.state + f" {what}" * (what != most) if call else "-")
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip()
