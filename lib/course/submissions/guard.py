"""Ranks on which the graders' code is looked at before and after: it must be as it was.

A learner's code runs on ranks alone, also what its cells do at once. The verdict is made in the
process that has launched them, to which the code has no pipe and of which it sees no file. What
measures an answer on a rank is in its reach; so a rank that has replaced a function or the code of
one has no right answer. Who takes pains can still deceive: Python hides nothing within a process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from course.ask.verdict import Wrong
from course.project.submission import guarded
from minidist.launch import pickling
from minidist.launch.launch import launch

OURS = ("course", "minidist", "from_scratch")


def guarded_launch(function: Callable[..., Any], ranks: int, *args: Any, **how: Any) -> list[Any]:
    """As minidist.launch; function and arguments are unpickled under guard, too."""
    try:
        data = pickling.dumps((function, args))
    except Exception as error:
        raise TypeError(f"launch: fn and its arguments must be picklable: {error}") from error
    return launch(_guarded, ranks, data, **how)


def _guarded(data: bytes) -> Any:
    def work() -> Any:
        function, args = pickling.loads(data)
        return function(*args)

    before = _codes()
    result = guarded(work)
    for function, code in before:
        if function.__code__ is not code:
            name = f"{function.__module__}.{function.__qualname__}"
            raise Wrong(f"your file replaces the code of {name}; leave what it stands on as it is.")
    return result


def _codes() -> list[tuple[FunctionType, CodeType]]:
    """Functions and methods of the course with their code."""
    modules = [m for name, m in sys.modules.items() if name.split(".")[0] in OURS]
    holders = [dict(vars(module)) for module in modules]
    kinds = [each for holder in holders for each in holder.values() if isinstance(each, type)]
    holders += [dict(vars(kind)) for kind in kinds if kind.__module__.split(".")[0] in OURS]
    found = [each for holder in holders for each in holder.values()]
    return [(each, each.__code__) for each in found if isinstance(each, FunctionType)]
