"""For tests that look at processes: who was there, and who is left."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil


def note(folder: str | Path, pid: int) -> None:
    (Path(folder) / str(pid)).touch()


def noted(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir()}


def ours(temporary: Path) -> list[str]:
    """What we and multiprocessing have put there; torch puts something there too."""
    return [p.name for p in temporary.iterdir() if p.name.startswith(("minidist-", "pymp-"))]


def living(pids: Iterable[int], seconds: float = 120) -> set[int]:
    """Those that still run after a while; they have been sent their signal, but take a moment."""
    left = set(pids)
    wait_until(lambda: not any(map(runs, left)), seconds)
    return {pid for pid in left if runs(pid)}


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # its new parent's business
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
