"""Read what the ranks have recorded, and say what is wrong: one sentence, a table, the stacks."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from minidist.diagnose.recorder import LINE, STACK_SIGNAL, STATE
from minidist.errors import name_ranks
from minidist.launch.outcome import Frame
from minidist.launch.report import ask_for_stacks, own_calls, read_stack, read_text, where

LONGEST, COLUMNS = 8, 8  # calls in the table; ranks that have a column each
WAITS = ("entered", "queued")  # states of a call; others are left and failed
Row = dict[int, "RecordedCall"]  # rank → its call of this number
Verdict = tuple[str, list[int]]  # a sentence, and running ranks: it is wrong if one goes on


@dataclass(frozen=True)
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
    def full(self) -> str:
        """All of it."""
        return " ".join(filter(None, (self.numbered, self.tensor, self.how)))


@dataclass(frozen=True)
class Rank:
    """The record of a rank: `state` is running, returned, raised, ended (by SIGTERM) or gone.

    Or it is echoed: the rank raised what only shows that another one has failed.
    """

    rank: int
    pid: int
    state: str
    error: str
    time: float
    calls: list[RecordedCall]
    stack: list[Frame]

    @property
    def waits(self) -> bool:
        """True if it is in a collective."""
        return bool(self.calls) and self.calls[-1].state in WAITS

    @property
    def now(self) -> str:
        """Its state and place, as words of a sentence."""
        after = f"after {self.calls[-1].numbered}" if self.calls else "before any collective"
        words = {
            "raised": f"raised {self.error}, {after}",
            "returned": f"has returned, {after}",
            "gone": f"is gone {after}: it was killed (SIGKILL, out of memory?), crashed or exited",
        }
        if text := words.get(self.state.replace("echoed", "raised")):
            return text
        if not self.stack:
            return f"is alive {after}, its stack unknown"
        file, line, name, _ = own_calls(self.stack)[-1]
        verb = "was" if self.state == "ended" else "is"
        return f"{verb} in {name} at {os.path.basename(file)}:{line}"


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
    stack, last = (file.with_suffix(suffix) for suffix in (".stack", ".last"))
    try:
        (state, head), *lines = _lines(file)
        if state == "running" and head["host"] == socket.gethostname():
            if head["pid"] == os.getpid() or _locked(file.with_suffix(".alive")):
                ask_for_stacks({head["pid"]: stack}, STACK_SIGNAL, patience)
            else:
                state, stack = ("ended" if read_text(last) else "gone"), last
        groups = dict(map(json.loads, read_text(file.with_suffix(".groups")).splitlines()))
        calls = [
            RecordedCall(state, members=groups[line["group"]], **line) for state, line in lines
        ]
        calls.sort(key=lambda call: call.order)
        frames = read_stack(read_text(stack).rpartition("(most recent call first):")[2])
        who = head["rank"], head["pid"], state, head["error"], head["time"]
        return head["ranks"], Rank(*who, calls, frames)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(f"diagnose: {file}, or what lies beside it, is damaged") from error


def _lines(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """State and content of each line; without those that are being written."""
    lines, content = [], file.read_bytes()
    if not content[:STATE].strip():  # the first one is, which takes microseconds
        time.sleep(0.01)
        content = file.read_bytes()
    for start in range(0, len(content), LINE):
        with suppress(ValueError):
            if state := content[start : start + STATE].decode().strip(" \0"):
                lines.append((state, json.loads(content[start + STATE : start + LINE])))
    return lines


def _locked(file: Path) -> bool:
    """True if the process that has locked it lives; a zombie does not."""
    with file.open("r+") as ours:
        try:
            fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def sentence(ranks: Sequence[Rank]) -> str:
    """The verdict, as far as the records tell: the first of these that holds.

    Ranks have made different calls; one is gone or has raised; one has not come where others wait.
    """
    return _verdict(ranks)[0]


def _verdict(ranks: Sequence[Rank], now: float | None = None) -> Verdict:
    """The sentence, with how long others have waited until `now`; and who may still go on."""
    rows, dead = _rows(ranks), _dead(ranks)
    blamed = f"rank {dead[0].rank} {dead[0].now}" if dead else ""
    if found := next(filter(None, map(_difference, rows.values())), None):
        return found, []
    if dead and dead[0].state != "echoed" and not dead[0].waits:
        return blamed, []
    if absent := _absent({each.rank: each for each in ranks}, rows, now):
        return absent
    if waiting := [each for each in ranks if each.state == "running" and each.waits and not dead]:
        call = waiting[0].calls[-1].numbered
        return f"all ranks have come to {call}, and it is not done", [r.rank for r in waiting]
    if all(each.state == "gone" for each in ranks):
        return "all ranks are gone, and none of them waited for another", []
    return blamed or "no rank waits: each has left every collective that it entered", []


def _rows(ranks: Sequence[Rank]) -> dict[tuple[str, int], Row]:
    """Group, number → the calls that belong together, in the order of the first of each."""
    rows: dict[tuple[str, int], Row] = {}
    calls = [(each.rank, call) for each in ranks for call in each.calls]
    for rank, call in sorted(calls, key=lambda each: each[1].time):
        rows.setdefault((call.group, call.number), {})[rank] = call
    return rows


def _difference(row: Row) -> str | None:
    """The difference between ranks' calls; with all_to_all, tensors may differ."""
    if len(names := _sides(row, "numbered")) > 1:
        return _versus(names, "at")
    [name] = names
    for given in ["how"] if "all_to_all" in name else ["tensor", "how"]:
        if len(sides := _sides(row, given)) > 1:
            return f"at {name}, {_versus(sides, 'with')}"
    return None


def _sides(row: Row, given: str) -> dict[str, list[int]]:
    """Values of the field `given`, unless empty → the ranks that have them, the fewest first."""
    sides: dict[str, list[int]] = {}
    for rank in sorted(row):
        if said := getattr(row[rank], given):
            sides.setdefault(said, []).append(rank)
    return dict(sorted(sides.items(), key=lambda side: (len(side[1]), -side[1][0])))


def _versus(sides: dict[str, list[int]], word: str) -> str:
    *few, (most, who) = sides.items()
    clauses = [f"{name_ranks(r)} {'is' if len(r) == 1 else 'are'} {word} {what}" for what, r in few]
    other = "the others" if len(who) > 1 else name_ranks(who)
    return f"{', '.join(clauses)}, {other} {word} {most}"


def _dead(ranks: Sequence[Rank]) -> list[Rank]:
    """Ranks to blame, the first ones first: those that raised, vanished, or raised an echo.

    A launcher kills those who wait. If it has killed all, none of them is to blame.
    """
    kinds = ["raised", "gone", "echoed"]
    if all(each.state == "gone" for each in ranks):
        return []
    return sorted(
        (each for each in ranks if each.state in kinds),
        key=lambda each: (kinds.index(each.state), each.waits, each.time),
    )


def _absent(
    ranks: dict[int, Rank], rows: dict[tuple[str, int], Row], now: float | None
) -> Verdict | None:
    """Ranks that are missing in a call where others wait, and wait nowhere else; or a circle.

    A rank whose call has failed only because another one was gone has waited there.
    """
    found, waits = [], dict[int, tuple[RecordedCall, list[int]]]()  # rank → call, who is missing
    for (group, number), row in rows.items():
        call = min(row.values(), key=lambda call: call.time)
        missing = [rank for rank in call.members if rank not in row]
        calls = [call for rank in missing if rank in ranks for call in ranks[rank].calls]
        behind = all(c.number < number for c in calls if c.group == group)  # or it is forgotten
        waiting = {rank: own for rank, own in row.items() if _waited(ranks[rank], own)}
        if missing and behind and waiting:
            found.append((call, missing))
            waits = {rank: (own, missing) for rank, own in waiting.items()} | waits
    if not found:
        return None
    call, missing = min(found, key=lambda each: sum(r in waits for r in each[1]) / len(each[1]))
    who = [rank for rank in missing if rank not in waits]
    if not who:
        return _circle(ranks, waits)
    place = ranks[who[0]].now if who[0] in ranks else "has recorded nothing"
    subject = "it" if len(who) == 1 else f"rank {who[0]}"
    still = [rank for rank in who if rank not in ranks or ranks[rank].state == "running"]
    came, since = "never came", ""
    if who[0] in still and who[0] in ranks:  # it may be in a long save, and come yet
        came = "has not come" if len(who) == 1 else "have not come"
        since = f" for {now - call.time:.1f} s" if now else ""
    return f"{name_ranks(who)} {came} to {call.numbered}{since}: {subject} {place}", still


def _waited(rank: Rank, call: RecordedCall) -> bool:
    return call.state in WAITS or (call.state == "failed" and rank.state == "echoed")


def _circle(ranks: dict[int, Rank], waits: dict[int, tuple[RecordedCall, list[int]]]) -> Verdict:
    """Follow who waits for whom until a rank comes again."""
    path = [min(waits)]
    while (after := waits[path[-1]][1][0]) not in path:
        path.append(after)
    circle = {rank: waits[rank] for rank in path[path.index(after) :]}
    each = "rank {} in {} of group {} for rank {}".format
    clauses = [each(r, own.numbered, own.group, who[0]) for r, (own, who) in circle.items()]
    still = [rank for rank in sorted(circle) if ranks[rank].state == "running"]
    return f"{name_ranks(sorted(circle))} wait for each other: {', '.join(clauses)}", still


def report(folder: str | os.PathLike[str], patience: float | None = None) -> str:
    """The sentence, the last calls with a column for each rank, and where the ranks stand.

    A rank that has not come may be on its way. So before one is blamed the ranks are watched for
    `patience` seconds; None: twice the longest time but one between two calls, from 1 to 20 s.
    """
    ranks = read(folder)
    first = {each.rank: each.calls for each in ranks}
    text, still = _verdict(ranks, time.time())
    apart = [sorted(b.time - a.time for a, b in pairwise(each.calls)) for each in ranks]
    usual = max((times[-2] for times in apart if len(times) > 1), default=0.0)
    wait = min(max(1.0, 2 * usual), 20.0) if patience is None else patience
    deadline = time.monotonic() + wait
    while still and time.monotonic() < deadline:
        time.sleep(0.2)
        ranks = read(folder)
        calls = {each.rank: each.calls for each in ranks}
        moved = [rank for rank in still if calls.get(rank) != first.get(rank)]
        not_yet = f"not yet: {name_ranks(moved)} went on while diagnose watched"
        text, still = (not_yet, []) if moved else _verdict(ranks, time.time())
    stacks = {each.rank: each.stack for each in ranks if each.stack}
    lines = [text, "", *_table(ranks), ""]
    lines += [f"rank {each.rank} {each.now}" for each in ranks if each.rank not in stacks]
    return "\n".join(lines + (where(stacks) if stacks else []))


def _table(ranks: Sequence[Rank]) -> Iterator[str]:
    rows = list(_rows(ranks).values())[-LONGEST:]
    most = [[*_sides(row, "full")][-1] for row in rows]
    columns: dict[tuple[Any, ...], list[int]] = {}
    for each in ranks:
        alike = None if len(ranks) > COLUMNS else each.rank  # many that are alike share a column
        cells = [
            call.state + f" {call.full}" * (call.full != usual) if call else "-"
            for call, usual in zip((row.get(each.rank) for row in rows), most, strict=True)
        ]
        columns.setdefault((alike, *cells), []).append(each.rank)
    table = [["", *most], *([name_ranks(who), *cells] for (_, *cells), who in columns.items())]
    widths = [max(map(len, column)) for column in table]
    for line in zip(*table, strict=True):
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip()
