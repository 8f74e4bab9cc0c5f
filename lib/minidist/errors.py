"""The exceptions, on the ground floor: whoever raises or catches one imports nothing else."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from types import UnionType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

P = ParamSpec("P")
R = TypeVar("R")


class ScheduleError(ValueError):
    """A schedule that cannot be run safely: it names the step and the message."""


class CommunicationError(RuntimeError):
    """A message could not be sent or received: a peer is gone, or nothing came in time."""


class MismatchError(RuntimeError):
    """The ranks do not make the same call, or another rank was given bad input.

    No ValueError: code that skips a bad batch would go on alone, and its peers would wait for it.
    """


class ReplicaError(RuntimeError):
    """The ranks' replicas are not alike.

    Attributes:
        name: of the first parameter or buffer that differs; "" if the ranks are not at one step.
        ranks: global ranks where it is not as on most; with no majority, not as on the first.
        step: of training, as far as known.
    """

    def __init__(
        self, message: str, name: str = "", ranks: Iterable[int] = (), step: int | None = None
    ) -> None:
        super().__init__(message)
        self.name, self.ranks, self.step = name, tuple(ranks), step


def check_flags(flags: Mapping[str, object]) -> None:
    """Raise TypeError for what is no flag, such as a word, which would count as True."""
    for name, value in flags.items():
        if value not in (None, True, False):
            raise TypeError(f"{name}: expected True or False, got {value!r}")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments of another kind than its annotations say."""

    @cache
    def signature() -> inspect.Signature:  # at the first call, when all its names are known
        return inspect.signature(function, eval_str=True)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature().bind(*args, **kwargs).arguments.items():
            _check_kind(name, value, signature().parameters[name].annotation)
        return function(*args, **kwargs)

    return call


def _check_kind(argument: str, value: Any, annotation: Any) -> None:
    if annotation is Any:
        return
    numbers = {int: ("__index__", "a whole number"), float: ("__float__", "a number")}
    if annotation in numbers:
        method, expected = numbers[annotation]
        right = hasattr(value, method) and not isinstance(value, bool)
    else:
        union = get_args(annotation) if isinstance(annotation, UnionType) else [annotation]
        kinds = [get_origin(each) or each for each in union]
        expected = " or ".join(each.__name__ for each in kinds)
        right = isinstance(value, tuple(kinds)) and (type(value) is not str or str in kinds)
    if not right:
        raise TypeError(f"{argument}: expected {expected}, got {value!r}")


def cut(text: str, most: int = 4000) -> str:
    """The text; of a long one its beginning and its end, and how much is left out in between."""
    half = most // 2
    left = len(text) - 2 * half
    gap = f" ... {left:,} characters left out ... "
    return text[:half] + gap + text[-half:] if left > len(gap) else text


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words; of more than eight, those in a row by the first and the last of them.

    Of more than eight such rows the first ones and the last.
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if len(ranks) > 8 and runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    if len(names) > 8:
        names = [*names[:3], "...", f"{names[-1]} ({len(ranks):,} in all)"]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names)}"


def _without_calls(error: BaseException) -> list[str]:
    return [f"\x1b[31m{type(error).__name__}\x1b[0m: {error}"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while ranks ran: the message says where they stood."""

    _render_traceback_ = _without_calls


class RankError(RuntimeError):
    """A rank failed. `ranks`: the one that failed first, or all those that did not end in time.

    `details`: every call on each rank, also those inside libraries.
    """

    def __init__(self, message: str, ranks: Iterable[int], details: str = "") -> None:
        super().__init__(message)
        self.ranks, self.details = tuple(ranks), details

    _render_traceback_ = _without_calls

    @property
    def rank(self) -> int:
        """The rank to blame; the lowest, if several did not end in time."""
        return self.ranks[0]


class TaskError(RuntimeError):
    """A task failed as often as it may, or did not end in time. `task`: its name ("map task 3")."""

    def __init__(self, task: str, message: str) -> None:
        super().__init__(task, message)  # both, or it could not be pickled
        self.task = task

    def __str__(self) -> str:
        return cut(" ".join(self.args))
