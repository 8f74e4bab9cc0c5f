"""What a launch says of ranks that failed or hang: where each stands in the user's own code.

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

from minidist.errors import RankError, name_ranks
from minidist.launch import rank as rank_process
from minidist.launch.outcome import Died, Frame, Outcome, Raised
from minidist.launch.process import ForkedProcess
from minidist.launch.rank import STACK_SIGNAL

OURS = str(Path(__file__).parents[1])
LIBRARIES = tuple({OURS, os.path.dirname(torch.__file__), *sysconfig.get_paths().values()})
LONGEST = 12  # lines of a message; the rest is in `details`
CALLER = rank_process.__file__.encode("ascii", "backslashreplace").decode()  # as faulthandler does


def failure(outcomes: Sequence[Outcome | None]) -> RankError | None:
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
    raised = {r: each for r, each in failed.items() if isinstance(each, Raised)}
    alike = {r: each for r, each in raised.items() if each.like(outcome)}
    lines = [f"{name_ranks(list(alike))} raised {outcome.traces[0][0]}", ""]
    lines += where({r: each.traces[0][1] for r, each in alike.items()})
    for summary, calls in outcome.traces[1:]:
        lines += [f"which came from {summary}", *_own(calls)]
    details = "\n".join(each.describe(f"On rank {r}") for r, each in alike.items())
    error = RankError(_short(lines), [rank], details)
    error.__cause__ = outcome.exception()
    return error


def hang(
    outcomes: Sequence[Outcome | None], stacks: Mapping[int, Sequence[Frame]], timeout: float
) -> RankError:
    hung = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
    lines = [f"{name_ranks(hung)} did not end within {timeout:g} s"]
    if done := [rank for rank in range(len(outcomes)) if rank not in hung]:
        lines.append(f"{name_ranks(done)} had returned; the others may be waiting for them")
    lines += ["", *where({rank: stacks.get(rank, []) for rank in hung})]
    calls = [f"Where rank {r} stood:\n{''.join(traceback.format_list(stacks[r]))}" for r in stacks]
    return RankError(_short(lines), hung, "\n".join(calls))


def where(stacks: Mapping[int, Sequence[Frame]]) -> list[str]:
    places: dict[tuple[str, ...], list[int]] = {}
    for rank, calls in stacks.items():
        places.setdefault(tuple(_own(calls)), []).append(rank)

    def waits_and_size(place: tuple[str, ...]) -> tuple[bool, int]:
        calls = stacks[places[place][0]]
        return any("distributed" in file or OURS in file for file, *_ in calls), len(places[place])

    lines = []
    for place in sorted(places, key=waits_and_size):
        lines += [f"{name_ranks(places[place])}:"] if len(stacks) > 1 else []
        lines += place or ["  before the function began, or unknown"]
    return lines


def stacks_of(
    processes: Sequence[ForkedProcess],
    outcomes: Sequence[Outcome | None],
    folder: Path,
    patience: float,
) -> dict[int, list[Frame]]:
    """Where the ranks that have not ended stand, as far as they say within `patience` seconds."""
    hung = {r: folder / f"{r}.stack" for r, outcome in enumerate(outcomes) if outcome is None}
    for r in hung:
        with suppress(ProcessLookupError):
            os.kill(processes[r].pid, STACK_SIGNAL)
    deadline = time.monotonic() + patience
    while True:
        texts = {r: path.read_text(errors="replace") for r, path in hung.items() if path.exists()}
        # Written down as far as the function's caller, or as far as there is room.
        whole = [r for r, text in texts.items() if CALLER in text or "\n  ...\n" in text]
        if len(whole) == len(hung) or time.monotonic() > deadline:
            return {r: read_stack(text) for r, text in texts.items()}
        time.sleep(0.02)


def read_stack(text: str) -> list[Frame]:
    before_ours = text.split(f'  File "{CALLER}"')[0]
    calls = re.findall(r'File "(.*)", line (\d+) in (.*)', before_ours)
    return [(file, int(line), name, None) for file, line, name in reversed(calls)]


def own_calls(calls: Sequence[Frame]) -> Sequence[Frame]:
    own = [c for c in calls if not c[0].startswith((*LIBRARIES, "<frozen"))]
    return [c for c in own if "/site-packages/" not in c[0]] or calls[-1:]  # of another process


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
    return "\n".join(lines)
