"""The outcome of a call in another process: a value, an exception, or the process's death."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

from minidist.errors import CommunicationError, MismatchError
from minidist.launch import pickling

# File, line number, function, and no source: the launcher alone knows that of a notebook's cells.
Frame = tuple[str, int, str, None]


@dataclass(frozen=True)
class Returned:
    value: bytes


@dataclass(frozen=True)
class Raised:
    when: float  # `time.monotonic()`, the same clock for all processes of a host
    traces: list[tuple[str, list[Frame]]]  # message and calls of the exception, its cause, ...
    error: bytes | None  # cloudpickle of the exception, if it can be pickled
    echo: bool  # as a rule it only shows that another rank has failed or made another call

    def like(self, other: Raised) -> bool:
        mine, theirs = self.traces[0][0], other.traces[0][0]
        return mine == theirs or (other.echo and mine.split(":")[0] == theirs.split(":")[0])

    def describe(self, where: str) -> str:
        first, *causes = [
            (summary, f" (most recent call last):\n{''.join(traceback.format_list(frames))}")
            for summary, frames in self.traces
        ]
        text = f"raised {first[0]}\n\n{where}{first[1]}"
        return text + "".join(f"\nwhich came from {cause}{calls}" for cause, calls in causes)

    def exception(self) -> BaseException | None:
        with suppress(Exception):  # also where there is none to load
            error: BaseException = pickling.loads(self.error)
            return error
        return None


@dataclass(frozen=True)
class Died:
    """The process ended without a report. `code`: its exit code, or minus the signal's number."""

    when: float
    code: int
    echo = False

    def describe(self, where: str = "") -> str:
        if self.code == os.EX_IOERR:
            return f"could not write its report: is {tempfile.gettempdir()} full? (exit code 74)"
        if self.code >= 0:
            return f"left with exit code {self.code}, without returning or raising"
        names = {each.value: each.name for each in signal.Signals}
        name = names.get(-self.code, f"signal {-self.code}")
        why = "; what it printed last says why" if name == "SIGABRT" else ""
        return f"was killed by {name}{why}"


Outcome = Returned | Raised | Died


def outcome_of(call: Callable[[], object], file: str) -> Returned | Raised:
    """Make the call and report how it ended; `file` is the caller's, for tracebacks to leave out.

    SystemExit is reported like any exception: a process that leaves early has failed.
    """
    try:
        value = call()
        try:
            return Returned(pickling.dumps(value))
        except Exception as error:
            what = f"the result, a {type(value).__name__}"
            raise TypeError(f"{what}, cannot be sent back: {error}") from None
    except BaseException as error:
        when, blob = time.monotonic(), None
        with suppress(Exception):
            blob = pickling.dumps(error)
        traces = [_trace(each, {file, __file__}) for each in _chain(error)]
        return Raised(when, traces, blob, only_echoes(error))


def only_echoes(error: BaseException) -> bool:
    noise = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
    for each in _chain(error):
        if isinstance(each, CommunicationError | MismatchError | dist.DistError):
            return True
        if isinstance(each, RuntimeError) and any(words in str(each) for words in noise):
            return True
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _trace(error: BaseException, ours: set[str]) -> tuple[str, list[Frame]]:
    summary = "".join(traceback.format_exception_only(error)).strip()
    calls = [c for c in traceback.extract_tb(error.__traceback__) if c.filename not in ours]
    return summary, [(c.filename, c.lineno or 0, c.name, None) for c in calls]
