"""Rows of a rank's function as it finds them: what came before a crash, or its time's end, is kept.

The function appends a line to a file for each row; meanwhile the launch waits in a thread.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from benchmarks.harness.record import Row
from benchmarks.harness.setups import Setup

PAUSE = 0.2  # seconds between two looks at the file


def streamed(
    setup: Setup, on_rank: Callable[..., object], *args: Any, timeout: float
) -> Iterator[Row]:
    """The rows that `on_rank(*args, path)` adds; raises as `launch`, after the last of them."""
    with NamedTemporaryFile("r") as file, ThreadPoolExecutor(1) as pool:
        launch = pool.submit(setup.launch, on_rank, *args, file.name, timeout=timeout)
        begun, running = "", True
        while running:
            running = bool(wait([launch], PAUSE).not_done)
            *lines, begun = (begun + file.read()).split("\n")
            yield from map(json.loads, lines)
        launch.result()


def attempt(path: str, about: Row, measure: Callable[[], Iterable[Row]]) -> bool:
    """Add the rows that are measured, or why there are none; whether it failed.

    Want of time is no failure.
    """
    try:
        for row in measure():
            add(path, about | row)
    except TimeoutError as error:
        add(path, about | {"no_time": str(error)})
    except Exception as error:
        add(path, about | {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        return True
    return False


def add(path: str, row: Row) -> None:
    """Append a row to the file."""
    with Path(path).open("a") as lines:
        print(json.dumps(row), file=lines)
