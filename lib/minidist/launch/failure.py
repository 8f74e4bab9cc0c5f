"""Which rank is to blame when a launch fails, and how to say it."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from minidist.errors import RankError
from minidist.launch import pickling
from minidist.launch import rank as rank_process
from minidist.launch.rank import Raised, Returned, Trace


@dataclass(frozen=True)
class Died:
    """The process ended without a report. `code`: its exit code, or minus the signal's number."""

    when: float
    code: int


Outcome = Returned | Raised | Died | None  # None: no word from the rank when the launcher gave up


_CALLER = rank_process.__file__.encode("ascii", "backslashreplace").decode()  # as faulthandler does


def failed(outcome: Outcome) -> bool:
    """Whether the rank is known to have failed."""
    return isinstance(outcome, Raised | Died)


def is_echo(outcome: Outcome) -> bool:
    """Whether the rank failed, but most likely because another one did."""
    return isinstance(outcome, Raised) and outcome.echo


def failure(
    outcomes: Sequence[Outcome], stacks: Mapping[int, str], timeout: float
) -> RankError | None:
    """The error to raise, or None when every rank returned.

    To blame is the earliest failure. An echo, such as a broken connection, is blamed only if there
    is nothing else: it is how the peers of a failed rank learn of it, often before the launcher.
    """
    if any(map(failed, outcomes)):
        return _first_failure(outcomes)
    if hung := [rank for rank, outcome in enumerate(outcomes) if outcome is None]:
        return _hang(outcomes, hung, stacks, timeout)
    return None


def _first_failure(outcomes: Sequence[Outcome]) -> RankError:
    def order(rank: int) -> tuple[bool, float]:
        outcome = outcomes[rank]
        assert isinstance(outcome, Raised | Died)
        return is_echo(outcome), outcome.when

    rank = min((r for r, outcome in enumerate(outcomes) if failed(outcome)), key=order)
    outcome = outcomes[rank]
    if isinstance(outcome, Died):
        return RankError(f"rank {rank} {_ending(outcome.code)}", [rank])
    assert isinstance(outcome, Raised)
    first, *causes = outcome.traces
    message = f"rank {rank} raised {first.summary}\n\nOn rank {rank}{_calls(first)}"
    message += "".join(f"\nwhich came from {cause.summary}{_calls(cause)}" for cause in causes)
    error = RankError(message, [rank])
    if outcome.error is not None:
        with suppress(Exception):  # its class may be known to the rank alone
            error.__cause__ = pickling.loads(outcome.error)
    return error


def _calls(trace: Trace) -> str:
    frames = [traceback.FrameSummary(file, line, name) for file, line, name in trace.frames]
    text = "".join(traceback.StackSummary.from_list(frames).format())
    return f" (most recent call last):\n{text}" if text else ", outside of the function\n"


def _ending(code: int) -> str:
    if -code in set(signal.Signals):
        return f"was killed by {signal.Signals(-code).name}"
    if code < 0:
        return f"was killed by signal {-code}"
    return f"left with exit code {code}, without returning or raising"


def _hang(
    outcomes: Sequence[Outcome], hung: list[int], stacks: Mapping[int, str], timeout: float
) -> RankError:
    done = [rank for rank in range(len(outcomes)) if rank not in hung]
    lines = [f"{_ranks(hung)} did not end within {timeout:g} s"]
    if done:
        lines.append(f"{_ranks(done)} had returned; the others may be waiting for them")
    for rank in hung:
        lines += [
            "",
            f"Where rank {rank} stood (innermost call first):",
            *_own(stacks.get(rank, "")),
        ]
    return RankError("\n".join(lines), hung)


def is_whole(stack: str) -> bool:
    """Whether the stack is written down as far as the launched function's caller, or as it fits."""
    return _CALLER in stack or "\n  ...\n" in stack


def _own(stack: str) -> list[str]:
    """The calls of the function that was launched, without those that brought it there."""
    calls = stack.splitlines()[1:]
    ours = next((i for i, call in enumerate(calls) if _CALLER in call), len(calls))
    return calls[:ours] or ["  before the function began, or unknown"]


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
