"""How a call is refused, in words: no exception is kept, nor what its traceback holds."""

from collections.abc import Callable

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
