"""The server that ranks are forked from: multiprocessing's, with torch loaded beforehand."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

_STARTING = threading.Lock()


def start(target: Callable[..., Any], *args: Any) -> ForkServerProcess:
    """Fork a process that calls `target(*args)`; the first one also starts the server."""
    process = _context().Process(target=target, args=args)
    with _anonymous_main():
        process.start()
    return process


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    # The second: torch imports it with the first optimizer, which would take each rank a second.
    context.set_forkserver_preload(
        ["minidist.launch.rank", "torch._dynamo", "minidist.launch.preload"]
    )
    ipython = sys.modules.get("IPython")
    if shell := ipython and ipython.get_ipython():
        shell.observe(_stop, "exit_now")
    return context


def _stop(_: object) -> None:
    """Stop the server, and the tracker that comes with it, when a notebook's kernel shuts down.

    They would end with the kernel. But it waits for its children to go first, and as it never reaps
    them it waits in vain, for 2.5 seconds.
    """
    servers: list[Any] = [forkserver._forkserver, resource_tracker._resource_tracker]
    for server in servers:
        with suppress(Exception):  # not public; should it go, shutdown is slow again, no more
            server._stop()


@contextmanager
def _anonymous_main() -> Iterator[None]:
    """Hide the main module from multiprocessing, which would run a script again in every rank.

    cloudpickle has packed what the function needs of it, so scripts need no `__main__` guard.
    """
    with _STARTING:  # or a launch in another thread would take the stand-in for the real one
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
