"""Runs what a reader wrote and returns a report, whatever happens."""

from __future__ import annotations

from course.puzzles import buckets, collective, lanes, pipeline, programs, sharded
from minidist.schedule.replay import Fault

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from course.puzzles import Task

FILE = "<string>"  # the name that `exec` gives it
JUDGES = {
    "collective": collective.judge,
    "programs": collective.judge,
    "buckets": buckets.judge,
    "sharded": sharded.judge,
    "pipeline": pipeline.judge,
}
GIVEN: dict[str, Task] = {
    "collective": {"Send": programs.Send},
    "programs": {"send": programs.send, "recv": programs.recv},
    "buckets": {},
    "sharded": {kind: lanes.caller(kind) for kind in sharded.KINDS},
    "pipeline": {kind: lanes.caller(kind) for kind in pipeline.KINDS},
}


class Output:
    """Printed output of the reader's code, up to some pages of it."""

    MOST = 20_000  # characters

    def __init__(self) -> None:
        self.text, self.more = "", 0

    def print(self, *values: object, sep: str = " ", end: str = "\n", **_: object) -> None:
        """Take the place of `print`."""
        text = sep.join(str(value) for value in values) + end
        kept = text[: max(0, self.MOST - len(self.text))]
        self.text += kept
        self.more += len(text) - len(kept)


def run(source: str, task: Task, builtins: Task | None = None) -> Task:
    """Run a reader's code and judge the function that the task asks for.

    Where `builtins` are given, the code has no others of Python's own functions.

    The report has `right`, `says` (sentences), `marks` ([text, earned] of each star), perhaps a
    `table`, something `drawn` or `lanes`, the `line` of an error, and what was printed.
    """
    output = Output()
    names = {"__name__": "yours", "print": output.print, **GIVEN[task["judge"]]}
    if builtins is not None:
        names["__builtins__"] = builtins
    report = {"right": False, "marks": [[mark["says"], False] for mark in task["marks"]]}
    try:
        exec(source, names)
        function = names.get(task["function"])
        if not callable(function):
            raise Fault(
                f"There is no function {task['function']} any more. It has to keep its name."
            )
        report = JUDGES[task["judge"]](function, task, names)
    except Fault as fault:
        report["says"] = [str(fault)]
    except SyntaxError as error:
        report["says"] = [f"Python cannot read it: {error.msg}."]
        report["line"] = indented(source) if error.msg == "unexpected indent" else error.lineno
    except Exception as error:
        report["says"] = [sentence(error)]
        report["line"] = line_of(error)
    return {"line": None, **report, "output": output.text, "more": output.more}


def sentence(error: Exception) -> str:
    """What Python says of an error; Brython meets endless recursion as an error of JavaScript's."""
    text = str(error).split(" (warning:")[0]
    if isinstance(error, RecursionError) or "call stack" in text or "too much recursion" in text:
        return "RecursionError: a function calls itself, and never ends."
    return type(error).__name__ + (f": {text}" if text else "")


def line_of(error: BaseException) -> int | None:
    """The last of the reader's lines that an error came through."""
    line, frame = None, error.__traceback__
    while frame:
        if frame.tb_frame.f_code.co_filename == FILE:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def indented(source: str) -> int | None:
    """The first line that is further in than the one before allows: Brython names the last one."""
    before = ""
    for number, line in enumerate(source.split("\n"), 1):
        code = line.split("#")[0].rstrip()
        if code:
            further = len(line) - len(line.lstrip()) > len(before) - len(before.lstrip())
            if further and not before.endswith((":", ",", "(", "[", "{")):
                return number
            before = code
    return None
