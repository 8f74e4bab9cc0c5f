"""How a call is refused, in words: no exception is kept, nor what its traceback holds."""

import re
from collections.abc import Callable, Iterable

import pytest

REFUSALS = (TypeError, ValueError, RuntimeError)


def refused(call: Callable[[], object], kind: type[Exception] = RuntimeError) -> str:
    """What it says."""
    return says(call, kind).partition(": ")[2]


def says(call: Callable[[], object], *kinds: type[Exception]) -> str:
    """What it says, after the exception's name."""
    with pytest.raises(kinds or REFUSALS) as told:
        call()
    return f"{type(told.value).__name__}: {told.value}"


def all_refused(rows: Iterable[tuple[Callable[[], object], str]], *kinds: type[Exception]) -> None:
    """Check that lists each call, of many, which is not refused in the words of its pattern."""
    wrong = []
    for call, pattern in rows:
        try:
            said = f"nothing, and returned {call()!r}"
        except Exception as error:  # any other kind is an offender, too
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, kinds or REFUSALS) and re.search(pattern, str(error)):
                continue
        wrong.append(f"expected {pattern!r}, it said {said}")
    assert not wrong, "\n".join(wrong)
