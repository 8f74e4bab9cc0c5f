"""Which rank is to blame when a launch fails, and how to say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minidist.errors import RankError
from minidist.launch import rank as rank_process
from minidist.launch.outcome import Died, Outcome, Raised

_CALLER = rank_process.__file__.encode("ascii", "backslashreplace").decode()  # as faulthandler does


def failure(
    outcomes: Sequence[Outcome | None], stacks: Mapping[int, str], timeout: float
) -> RankError:
    """The error to raise when not every rank returned; an outcome of None is a hang.

    To blame is the earliest failure. An echo, such as a broken connection, is blamed only if there
    is nothing else: it is how the peers of a failed rank learn of it, often before the launcher.
    """
    failed = {r: each for r, each in enumerate(outcomes) if isinstance(each, Raised | Died)}
    if failed:
        rank = min(failed, key=lambda r: (failed[r].echo, failed[r].when))
        outcome = failed[rank]
        error = RankError(f"rank {rank} {outcome.describe(f'On rank {rank}')}", [rank])
        if isinstance(outcome, Raised):
            error.__cause__ = outcome.exception()
        return error
    hung = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
    lines = [f"{_names(hung)} did not end within {timeout:g} s"]
    if done := [rank for rank in range(len(outcomes)) if rank not in hung]:
        lines.append(f"{_names(done)} had returned; the others may be waiting for them")
    for rank in hung:
        lines += ["", f"Where rank {rank} stood (innermost call first):"]
        calls = stacks.get(rank, "").splitlines()[1:]
        ours = next((i for i, call in enumerate(calls) if _CALLER in call), len(calls))
        lines += calls[:ours] or ["  before the function began, or unknown"]
    return RankError("\n".join(lines), hung)


def is_whole(stack: str) -> bool:
    """Whether the stack is written down as far as the launched function's caller, or as it fits."""
    return _CALLER in stack or "\n  ...\n" in stack


def _names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
