"""What a grader says."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """A grader's answer. True if the exercise is solved."""

    status: Literal["not yet", "wrong", "right"]
    text: str

    def __bool__(self) -> bool:
        return self.status == "right"

    def __str__(self) -> str:
        return f"{self.status.capitalize()}: {self.text}"

    def _repr_html_(self) -> str:
        kind = self.status.replace(" ", "-")
        text = html.escape(self.text).replace("\n", "<br>")
        return f'<p class="verdict {kind}"><b>{self.status.capitalize()}.</b> {text}</p>'


class Wrong(Exception):
    """Raised inside a grader: the diagnosis."""


def ask(function: Callable[..., object], *args: object) -> object:
    """Call a learner's function; what it raises is a wrong answer, not the grader's failure."""
    try:
        return function(*args)
    except NotImplementedError:
        raise
    except Exception as error:
        raise Wrong(f"for {args} it raised {type(error).__name__}: {error}.") from error


def ask_number(function: Callable[..., object], *args: object) -> float:
    """The same, for an answer that must be a number."""
    answer = ask(function, *args)
    if not isinstance(answer, int | float) or not math.isfinite(answer):
        raise Wrong(f"for {args} you say {answer!r}; expected a number of bytes.")
    return float(answer)


def ask_as(
    read: Callable[[Any], T],
    expected: str,
    function: Callable[..., object],
    *args: object,
    case: str = "",
) -> T:
    """The same, for an answer that `read` must understand."""
    answer = ask(function, *args)
    try:
        return read(answer)
    except (TypeError, ValueError) as error:
        raise Wrong(f"{case}you return {answer!r:.80}; expected {expected}.") from error


def ask_numbers(function: Callable[..., object], *args: object, case: str = "") -> list[int]:
    """The same, for a list of whole numbers."""
    return ask_as(lambda answer: list(map(int, answer)), "a list of numbers", function, *args,
                  case=case)  # fmt: skip


def ask_pairs(
    function: Callable[..., object], *args: object, case: str = "", expected: str
) -> list[tuple[int, int]]:
    """The same, for a list of pairs of whole numbers."""

    def read(answer: Any) -> list[tuple[int, int]]:
        return [(int(start), int(end)) for start, end in answer]

    return ask_as(read, expected, function, *args, case=case)


def hint(answer: float, hints: Iterable[tuple[float, str]], within: float = 1e-9) -> str:
    """A blank and what the first value that is the answer says of it; "" if there is none."""
    fitting = (f" {text}" for value, text in hints if abs(value - answer) <= within)
    return next(fitting, "")


NOT_YET = Verdict("not yet", "Write the function, then run this cell again.")


def grader(grade: Callable[P, str]) -> Callable[P, Verdict]:
    """Make a grader of a function that returns what was proven, or raises Wrong.

    A stub raises NotImplementedError, which is no mistake yet.
    """

    @wraps(grade)
    def verdict(*args: P.args, **kwargs: P.kwargs) -> Verdict:
        try:
            return Verdict("right", grade(*args, **kwargs))
        except NotImplementedError:
            return NOT_YET
        except Wrong as wrong:
            return Verdict("wrong", str(wrong))

    return verdict
