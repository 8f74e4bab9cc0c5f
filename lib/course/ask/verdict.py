"""A grader's sentences, its questions to a learner's function, and the processes that run it."""

import html
import math
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial, update_wrapper, wraps
from importlib.abc import MetaPathFinder
from io import StringIO
from numbers import Real
from operator import index
from pathlib import Path
from random import Random
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import numpy as np
import torch

import minidist
from minidist.errors import cut

P = ParamSpec("P")
T = TypeVar("T")
Range = tuple[int, int]  # from the first to before the last

LIMIT = 10.0  # seconds for a grading in a process of its own
GRACE = 6.0  # more until the process is killed, if the alarm has not ended it
TIMEOUT = 15.0  # seconds until real ranks that hang are killed
PATIENCE = "COURSE_PATIENCE"  # in the environment: times as long as all of these
LATE = re.compile(r"\bd(id|oes) not (come to an )?end\b(?!, and nothing moves)")  # in a verdict
IN_ORDER = " All ranks must make the same calls, in the same order."
CALL = re.compile(r"^  (.+), (line \d+, in .+)$", re.M)
GROUP = re.compile(r"^(ranks? [\d, .-]+):\n((?:  .*\n?)+)", re.M)  # who stands where
# In the stack of a rank that waits for others.
IN_A_CALL = re.compile(
    r'/minidist/|c10d.py", line \d+, in \w*(barrier|send|recv|reduce|gather|scatter|cast|to_all)'
)
COURSE = "/lib/course/"  # in the path of a grader's own file
NOBODYS = (COURSE, "/site-packages/", "/lib/python")  # in that of a file that is not a learner's
OURS = tuple(f"{Path(__file__).parents[2] / name}/" for name in ("course", "minidist"))
TORCHS = str(Path(torch.__file__).parent)
NOT_THEIRS = (*OURS, TORCHS, *sysconfig.get_paths().values())
LESSON = "from_scratch"
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
        return f"{name}.", cut(self.text[:1].upper() + self.text[1:])


class Wrong(Exception):
    """Raised inside a grader: the diagnosis."""


class TooLong(BaseException):
    """Time is up. A learner's `except Exception` does not catch it."""


# ---- ask a learner's function ----


def ask(function: Callable[..., object], *args: object, case: str = "") -> object:
    """Call a learner's function; what it raises is a wrong answer, not the grader's failure.

    `case` begins the verdict, such as "for 3 ranks "; without it that shows the arguments.
    """
    where = case or f"for {args} "
    try:
        return function(*args)
    except (NotImplementedError, Wrong):
        raise
    except TooLong as error:
        raise Wrong(f"{where}it does not come to an end.") from error
    except Exception as error:
        raise Wrong(f"{where}it raised {raised(error)}.") from None


def raised(error: Exception) -> str:
    """The error with the last line of the learner's own cell or file that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not any(part in each.filename for part in NOBODYS)]
    lines = [each.lineno for each in own if each.filename == own[0].filename]
    return told(error, f" in line {lines[-1]}" if lines else "")


def told(error: Exception, where: str = "") -> str:
    """The error's kind and, if it has one, its text; not more of that than can be read."""
    return f"{type(error).__name__}{where}{f': {cut(str(error))}' if str(error) else ''}"


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
    """The whole number that an answer is; TypeError if it is none."""
    found = number(answer)
    if found != int(found):
        raise TypeError(f"{answer!r:.80} is not a whole number")
    return int(found)


def pair(answer: Any) -> Range:
    """The two whole numbers that an answer is; an error if it is anything else."""
    one, other = answer
    return whole(one), whole(other)


def same_ranges(found: Sequence[Range], right: Sequence[Range]) -> bool:
    """True if all [start, end) are equal, however the empty ones are written."""
    pairs = zip(found, right, strict=False)
    same = all(one == other or (one[0] >= one[1] and other[0] >= other[1]) for one, other in pairs)
    return len(found) == len(right) and same


def list_of(read: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """A reader of lists whose elements `read` understands."""
    return lambda answer: [read(element) for element in answer]


def ask_as(
    read: Callable[[Any], T],
    expected: str,
    function: Callable[..., object],
    *args: object,
    case: str = "",
) -> T:
    """As `ask`, for an answer that `read` must understand."""
    answer = ask(function, *args, case=case)
    try:
        return read(answer)
    except NotImplementedError:
        raise
    except Exception as error:
        where = case or f"for {args} "
        raise Wrong(f"{where}you return {answer!r:.80}; expected {expected}.") from error


def draws(place: int) -> Random:
    """The source of an exercise's random cases: always the same unless `COURSE_SEED` is set."""
    return Random(f"{place} {os.environ.get('COURSE_SEED', '')}")


def many(count: int, noun: str) -> str:
    """A number of things: "1 rank", "3 ranks", "2 batches"."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{plural if count != 1 else ''}"


def learners_line() -> str:
    """The innermost call that is neither a library's nor the course's."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if line := learners(frame.f_code.co_filename, frame.f_lineno):
            return line
    return ""


def learners(file: str, line: int | None) -> str:
    """The line as a sentence names it: "ring.py, line 60", or "line 3" of a notebook's cell.

    "" if it is not the learner's.
    """
    if file.startswith((*NOT_THEIRS, "<")):
        return ""
    return f"line {line}" if "/ipykernel_" in file else f"{Path(file).name}, line {line}"


# ---- without the lesson ----


@contextmanager
def without_lesson() -> Iterator[None]:
    """Within it nothing can import the lesson, which is the solution, by whatever call."""
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if _of_the_lesson(name)}
    sys.meta_path.insert(0, finder := Refusing())
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)


class Refusing(MetaPathFinder):
    """A finder of modules that refuses the lesson's."""

    def find_spec(self, name: str, *_: object) -> None:
        """Find nothing; raise Wrong for a module of the lesson."""
        if _of_the_lesson(name):
            where = f" ({line})" if (line := learners_line()) else ""
            raise Wrong(f"your code imports {name}, which is the solution{where}.")


def unaided(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Result of the call, `without_lesson`."""
    with without_lesson():
        return call(*args, **kwargs)


def _of_the_lesson(name: str) -> bool:
    return name.split(".")[0] == LESSON


# ---- grade ----


class Grader(Generic[P]):
    """A grader made of a function that returns what it has tried, or raises Wrong.

    A stub raises NotImplementedError, which is no mistake yet, and may say what is missing. Of what
    is printed meanwhile, the beginning is shown.
    """

    __name__: str

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
            return Verdict("not yet", str(error) or "Write the function, then run this cell again.")
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
            raise RuntimeError("first solve the exercise above, then run this cell again")
        return self._solved


def formula(grade: Callable[P, str]) -> Grader[P]:
    """Make a grader that runs all of `grade` in one process of its own, with a time limit."""

    @wraps(grade)
    def in_a_process(*args: P.args, **kwargs: P.kwargs) -> str:
        return alone(partial(unaided, grade, *args, **kwargs))

    return Grader(in_a_process)


def patient(seconds: float) -> float:
    """A limit of seconds as it is now: a busy machine is given several times as long."""
    return seconds * float(os.environ.get(PATIENCE, "1"))


def alone(call: Callable[..., T], *args: Any) -> T:
    """Return call(*args) from a process that is killed after it, with all that it has started."""
    limit = patient(LIMIT)
    found: T = on_ranks(_with_alarm, 1, call, args, limit, timeout=LIMIT + GRACE)[0]
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


def on_ranks(
    function: Callable[..., Any],
    ranks: int,
    *args: object,
    timeout: float | None = None,
    hints: Mapping[str, str] | None = None,
) -> list[Any]:
    """As minidist.launch; what a learner's function raises there is a wrong answer.

    Args:
        function: what each rank runs, on `args`; it calls the learner's function.
        timeout: seconds until ranks that have not ended are killed, if nobody has asked for more
            patience; `TIMEOUT` if None.
        hints: part of a failure's text → what to add to it, beside what all have.
    """
    several, timeout = ranks > 1, patient(timeout or TIMEOUT)
    usual = {"did not end": IN_ORDER, "disagree": IN_ORDER} if several else {}
    try:
        return minidist.launch(function, ranks, *args, device="cpu", timeout=timeout)
    except TypeError as error:  # it cannot be pickled
        raise Wrong(f"your function cannot be sent to another process: {error}.") from error
    except minidist.RankError as error:
        cause = error.__cause__
        if isinstance(cause, NotImplementedError):
            raise cause from error
        if isinstance(cause, Wrong):
            where = f"On rank {error.ranks[0]} of {ranks} " if several else ""
            raise Wrong(f"{where}{cause}") from error
        first = str(error).split("\n\n")[0].replace("\n", "; ")
        known = (usual | dict(hints or {})).items()
        fitting = dict.fromkeys(hint for part, hint in known if part in first)
        where = f"On {ranks} real processes" if several else "the process that runs your function"
        first = first if several else first.removeprefix("rank 0 ")
        raise Wrong(f"{where} {first}{_learners_line(error)}.{''.join(fitting)}") from error


def _learners_line(error: minidist.RankError) -> str:
    """The learner's line at which the odd rank raised or hung, or ""; where ranks hang apart, all.

    " (line 3, in my_ring)" of a cell, " (ring.py, line 3, in all_reduce)" of a file.
    """
    groups = GROUP.findall(str(error))
    if "did not end" in str(error) and len(groups) > 1:
        return f": {'; '.join(_stands(who, calls, error.details) for who, calls in groups)}"
    ranks = re.split(r"^(?:ranks? [\d, ]+:|which .+)?$", str(error), flags=re.M)[1:]
    return _line(next(filter(str.strip, ranks), ""))


def _line(calls: str) -> str:
    """The learner's innermost line among calls, in parentheses; or ""."""
    own = [(file, call) for file, call in CALL.findall(calls) if COURSE not in file]
    if not own:
        return ""
    file, call = own[-1]
    path = re.match('File "(.+)"', file)  # a cell has none: it is the one that was just run
    return f" ({Path(path[1]).name}, {call})" if path else f" ({call})"


def _stands(who: str, calls: str, details: str) -> str:
    """Where a group of ranks hangs: "rank 1 stands there (line 3, in my_ring)"."""
    first = re.search(r"\d+", who)
    stood = details.partition(f"Where rank {first and first[0]} stood:")[2]
    waits = IN_A_CALL.search(stood.partition("Where rank")[0])
    verb = "waits" if who.startswith("rank ") else "wait"
    does = f"{verb} for others" if waits else f"{'is' if verb == 'waits' else 'are'} busy"
    return f"{who} {does}{_line(calls) or ' outside of your function'}"
