"""The record of each rank, read from the files of `record`: its calls, its state, its stack."""

import fcntl
import json
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from minidist.diagnose.recorder import LINE, STACK_SIGNAL, STATE
from minidist.errors import checked
from minidist.launch.outcome import Frame
from minidist.launch.report import ask_for_stacks, own_calls, read_stack, read_text

DECODER = json.JSONDecoder()
WAITS = ("entered", "queued")  # states of a call; others are left and failed


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A rank's call of a collective."""

    state: str
    number: int
    name: str
    tensor: str
    group: str
    order: int
    time: float
    members: list[int]  # ranks of the group
    how: str = ""  # its operation and root

    @property
    def numbered(self) -> str:
        """The call in words, without what it was given."""
        return f"{self.name} #{self.number}"

    @property
    def sized(self) -> str:
        """The same with the size of its group, for records of several groups."""
        return f"{self.numbered} of {len(self.members)} ranks"

    @property
    def full(self) -> str:
        """All of it."""
        return " ".join(filter(None, (self.numbered, self.tensor, self.how)))


@dataclass(frozen=True)
class Rank:
    """The record of a rank.

    `state` is running, returned, raised, ended (by SIGTERM), crashed or gone; echoed, if the rank
    raised what only shows that another one has failed; or dumped, by PyTorch's flight recorder.
    """

    rank: int
    pid: int
    state: str
    error: str
    time: float
    calls: list[RecordedCall]
    stack: list[Frame]  # of a rank that runs, or was ended or crashed
    host: str = ""  # unless it is this one

    @property
    def waits(self) -> bool:
        """True if it is in a collective."""
        return self.waiting is not None

    @property
    def waiting(self) -> RecordedCall | None:
        """The call that it is in. Of a dump, the first that is not done, but queued on the GPU."""
        calls = self.calls if self.state == "dumped" else self.calls[-1:]
        return next((call for call in calls if call.state in WAITS), None)

    @property
    def now(self) -> str:
        """Its state and place, as words of a sentence."""
        several = len({call.group for call in self.calls}) > 1
        last = [call.sized if several else call.numbered for call in self.calls[-1:]]
        after = f"after {last[0]}" if last else "before any collective"
        if self.state == "dumped":
            return f"has last called {' '.join(last)} {self.place}" if last else "made no call"
        if self.state == "crashed":
            return f"{self.fate} {self.place or after}"
        if self.state == "gone":
            return f"is gone {after}: it was killed (SIGKILL, out of memory?), crashed or exited"
        if self.state in ("returned", "raised", "echoed"):
            return f"{self.fate}, {after}"
        if self.place:
            return f"{'was' if self.state == 'ended' else 'is'} {self.place}"
        if self.host:
            return f"is on host {self.host}, {after}: diagnose it there for its stack"
        return f"is alive {after}, its stack unknown"

    @property
    def fate(self) -> str:
        """What has become of it; "" if it runs, as far as its record tells."""
        fates = {"returned": "has returned", "crashed": f"crashed ({self.error})"}
        fates |= dict.fromkeys(("raised", "echoed"), f"raised {self.error}")
        fates |= {"gone": "is gone", "ended": "was ended"}
        return fates.get(self.state, "")

    @property
    def place(self) -> str:
        """Its line of the user's code, if it is known."""
        if not self.stack:
            return ""
        file, line, name, _ = own_calls(self.stack)[-1]
        if "ipykernel_" in file:  # a notebook's cell, whose file's name is a number
            return f"in {name} at a cell's line {line}"
        return f"in {name} at {os.path.basename(file)}:{line}"


@checked
def read(folder: str | os.PathLike[str], patience: float = 2.0) -> list[Rank]:
    """The ranks with a record in `folder`. Those that live here write down their stacks first.

    That takes microseconds, or up to `patience` seconds for a rank that the system has stopped.
    """
    found = [_read(file, patience) for file in Path(folder).glob("*.calls")]
    if not found:
        raise FileNotFoundError(f"diagnose: no rank has recorded in {Path(folder).absolute()}")
    ranks, _ = max(found, key=lambda each: each[1].time)  # an earlier run may have had more
    return sorted((each for _, each in found if each.rank < ranks), key=lambda each: each.rank)


def _read(file: Path, patience: float) -> tuple[int, Rank]:
    """The number of ranks, and the one that has recorded in this file."""
    try:
        (state, head), *lines = _lines(file)
        error, last, text = head["error"], read_text(file.with_suffix(".last")), ""
        host = "" if head["host"] == socket.gethostname() else head["host"]
        if state == "running" and not host:
            if head["pid"] == os.getpid() or _locked(file.with_suffix(".alive")):
                stack = file.with_suffix(".stack")
                [text] = ask_for_stacks({head["pid"]: stack}, STACK_SIGNAL, patience)
            elif crash := re.search("^Fatal Python error: (.*)", last):
                state, error, text = "crashed", crash[1], last
            else:
                state, text = ("ended" if last else "gone"), last
        groups = dict(map(_members, read_text(file.with_suffix(".groups")).splitlines()))
        calls = [
            RecordedCall(state, members=groups[line["group"]], **line) for state, line in lines
        ]
        calls.sort(key=lambda call: call.order)
        frames = read_stack(text.rpartition("(most recent call first):")[2])
        who = head["rank"], head["pid"], state, error, head["time"]
        return head["ranks"], Rank(*who, calls, frames, host)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(f"diagnose: {file}, or what lies beside it, is damaged") from error


@lru_cache(maxsize=10_000)
def _members(line: str) -> tuple[str, list[int]]:
    """A group and its ranks: thousands of ranks have the same line, which is long."""
    name, ranks = json.loads(line)
    return name, ranks


def _lines(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """State and content of each line; without those that are being written."""
    lines, content = [], file.read_text("latin-1")  # a character for each byte
    for start in range(0, len(content), LINE):
        with suppress(ValueError):
            if state := content[start : start + STATE].strip(" \0"):
                lines.append((state, DECODER.raw_decode(content, start + STATE)[0]))
    return lines


def _locked(file: Path) -> bool:
    """True if the process that has locked it lives; a zombie does not."""
    with file.open("r+") as ours:
        try:
            fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
