"""What a grader says, how it asks a learner's function, and the process that it asks it in."""

import html
import math
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from functools import update_wrapper, wraps
from inspect import unwrap
from io import StringIO
from numbers import Real
from operator import index
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import numpy as np
import torch

import minidist

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 10.0  # seconds for a grading in a process of its own
GRACE = 6.0  # more until the process is killed, if the alarm has not ended it
PRINTED = 5000  # characters of a learner's output that are shown
COLORS = {"right": "#1a7f37", "wrong": "#cf222e", "not yet": "#8c959f"}


@dataclass(frozen=True)
class Verdict:
    """A grader's answer. True if the exercise is solved."""

    status: Literal["not yet", "wrong", "right"]
    text: str

    def __bool__(self) -> bool:
        return self.status == "right"

    def __str__(self) -> str:
        return " ".join(self._said())

    def _repr_html_(self) -> str:
        name, text = map(html.escape, self._said())
        style = f"border-left: 0.5em solid {COLORS[self.status]}; padding: 0.5em 1em"
        return f'<p style="{style}"><b>{name}</b> {text.replace(chr(10), "<br>")}</p>'

    def _said(self) -> tuple[str, str]:
        """Its name, then sentences: "Correct for 9 lists. ..." or "Wrong. For 3 ranks ..."."""
        name = "Correct" if self else self.status.capitalize()
        if self and self.text.startswith("for "):
            return name, self.text
        return f"{name}.", self.text[:1].upper() + self.text[1:]


class Wrong(Exception):
    """Raised inside a grader: the diagnosis."""


class TooLong(BaseException):
    """Time is up. A learner's `except Exception` does not catch it."""


# ---- ask a learner's function ----


def ask(function: Callable[..., object], *args: object) -> object:
    """Call a learner's function; what it raises is a wrong answer, not the grader's failure."""
    try:
        return function(*args)
    except (NotImplementedError, Wrong):
        raise
    except TooLong as error:
        raise Wrong(f"for {args} it does not come to an end.") from error
    except Exception as error:
        where = _line_in(function, error)
        raise Wrong(f"for {args} it raised {type(error).__name__}{where}: {error}.") from error


def _line_in(function: Callable[..., object], error: Exception) -> str:
    """The last line of the learner's own cell or file that the error came through, if any."""
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if code and each.filename == code.co_filename]
    return f" in line {lines[-1]}" if lines else ""


def number(answer: object) -> float:
    """The number that an answer is, also one of numpy's or a tensor without dimensions.

    Raises:
        TypeError: it is none, or a bool, or not finite.
    """
    if isinstance(answer, torch.Tensor | np.ndarray) and not answer.ndim:
        answer = answer.item()
    if not isinstance(answer, torch.Tensor | np.ndarray | bool | np.bool_):
        if hasattr(answer, "__index__"):
            return index(answer)
        if isinstance(answer, Real) and math.isfinite(answer):
            return float(answer)
    raise TypeError(f"{answer!r:.80} is not a finite number")


def whole(answer: object) -> int:
    """The whole number that an answer is.

    Raises:
        TypeError: it is none.
    """
    found = number(answer)
    if found != int(found):
        raise TypeError(f"{answer!r:.80} is not a whole number")
    return int(found)


def ask_as(
    read: Callable[[Any], T],
    expected: str,
    function: Callable[..., object],
    *args: object,
    case: str = "",
) -> T:
    """As `ask`, for an answer that `read` must understand."""
    answer = ask(function, *args)
    try:
        return read(answer)
    except NotImplementedError:
        raise
    except Exception as error:
        where = case or f"for {args} "
        raise Wrong(f"{where}you return {answer!r:.80}; expected {expected}.") from error


def ask_number(
    function: Callable[..., object], *args: object, expected: str = "a number of bytes"
) -> float:
    """Ask for a number."""
    return ask_as(number, expected, function, *args)


def ask_whole(
    function: Callable[..., object], *args: object, case: str = "", expected: str = "a whole number"
) -> int:
    """Ask for a whole number."""
    return ask_as(whole, expected, function, *args, case=case)


def ask_numbers(function: Callable[..., object], *args: object, case: str = "") -> list[int]:
    """Ask for a list of whole numbers."""
    return ask_as(lambda answer: list(map(whole, answer)), "a list of numbers", function, *args,
                  case=case)  # fmt: skip


def ask_pairs(
    function: Callable[..., object], *args: object, case: str = "", expected: str
) -> list[tuple[int, int]]:
    """Ask for a list of pairs of whole numbers."""

    def read(answer: Any) -> list[tuple[int, int]]:
        return [(whole(start), whole(end)) for start, end in answer]

    return ask_as(read, expected, function, *args, case=case)


def hint(answer: float, hints: Iterable[tuple[float, str]], within: float = 1e-9) -> str:
    """A blank and what the first value that is the answer says of it; "" if there is none."""
    fitting = (f" {text}" for value, text in hints if abs(value - answer) <= within)
    return next(fitting, "")


def check_numbers(
    function: Callable[..., object],
    cases: Iterable[tuple[Any, ...]],
    right: Callable[..., float],
    told: Callable[..., str],
    why: Callable[..., str],
    *,
    unit: str = "bytes",
    within: float = 1e-9,
) -> None:
    """Ask for the number of each case; raise Wrong at the first that is not `right(*case)`.

    The verdict names the case as `told(*case)` does, and ends with `why(answer, *case)`, which is
    a blank and what may be wrong, or "".
    """
    for case in cases:
        given = deepcopy(case)
        answer, wanted = ask_number(function, *given, expected=f"a number of {unit}"), right(*case)
        if abs(answer - wanted) > within:
            said = f"{amount(answer)} {unit.removesuffix('s') if answer == 1 else unit}"
            raise Wrong(
                f"{told(*case)} you say {said}; it is {amount(wanted)}.{why(answer, *case)}"
            )


def amount(value: float) -> str:
    """A number as a verdict shows it: a whole one with commas, another one to four digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def many(count: int, noun: str) -> str:
    """A number of things: "1 rank", "3 ranks"."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


# ---- grade ----

NOT_YET = Verdict("not yet", "Write the function, then run this cell again.")


class Grader(Generic[P]):
    """A grader made of a function that returns what it has tried, or raises Wrong.

    A stub raises NotImplementedError, which is no mistake yet, and may say what is missing. Of what
    is printed meanwhile, the beginning is shown.
    """

    def __init__(self, grade: Callable[P, str]) -> None:
        self._grade = grade
        self._solved: Any = None
        update_wrapper(self, grade)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Verdict:
        """Grade a learner's function."""
        printed = StringIO()
        try:
            with redirect_stdout(printed):
                verdict = Verdict("right", self._grade(*args, **kwargs))
            self._solved = self._solved or args[0]
            return verdict
        except NotImplementedError as error:
            return Verdict("not yet", str(error)) if error.args else NOT_YET
        except Wrong as wrong:
            return Verdict("wrong", str(wrong))
        finally:
            text = printed.getvalue()
            more = f"\n... and {len(text) - PRINTED:,} characters more\n"
            print(text[:PRINTED], end=more if len(text) > PRINTED else "")

    @property
    def solved(self) -> Any:
        """The first function that was right, for the cells below: the reader's, or the solution."""
        if self._solved is None:
            raise RuntimeError("solve the exercise first, or run its folded solution")
        return self._solved


def formula(grade: Callable[P, str]) -> Grader[P]:
    """Make a grader that runs all of `grade` in one process of its own, with a time limit."""

    @wraps(grade)
    def in_a_process(*args: P.args, **kwargs: P.kwargs) -> str:
        return alone(_unwrapped, sys.modules[grade.__module__], grade.__name__, args, kwargs)

    return Grader(in_a_process)


def _unwrapped(module: Any, name: str, args: Any, kwargs: Any) -> str:
    text: str = unwrap(getattr(module, name))(*args, **kwargs)
    return text


def alone(call: Callable[..., T], *args: Any) -> T:
    """Return call(*args) from a process that is killed after it, with all that it has started.

    Raises:
        Wrong: it has raised that, or anything else, or it did not come to an end, or it died.
        NotImplementedError: it has raised that.
    """
    try:
        found: T = minidist.launch(
            _with_alarm, 1, call, args, LIMIT, device="cpu", timeout=LIMIT + GRACE
        )[0]
    except minidist.RankError as error:
        if isinstance(error.__cause__, NotImplementedError | Wrong):
            raise error.__cause__ from error
        first = str(error).split("\n\n")[0].replace("\n", "; ").removeprefix("rank 0 ")
        raise Wrong(f"the process that runs your function {first}.") from error
    except TypeError as error:  # it cannot be pickled
        raise Wrong(f"your function cannot be sent to another process: {error}.") from error
    return found


def _with_alarm(call: Callable[..., T], args: tuple[Any, ...], limit: float) -> T:
    def ring(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return call(*args)
    except TooLong as error:
        raise Wrong(f"your function did not come to an end within {limit:g} s.") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
