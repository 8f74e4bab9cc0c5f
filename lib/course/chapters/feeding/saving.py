"""The grader of a file's saving: a reader looks at it while it is written."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from course.ask.ranks import Check, on_worlds
from course.ask.verdict import Grader

PATIENCE = 1.0  # seconds in which a rank that does not wait for the file has come back


class _Spy:
    """Part of the state: when it is written, it looks what a reader would find meanwhile."""

    def __init__(self, path: Path, ranks: int) -> None:
        self.path, self.ranks, self.found = path, ranks, list[str]()

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        self.found.append(_content(self.path))
        back, deadline = self.path.parent.with_name("back"), time.monotonic() + PATIENCE
        while len(list(back.iterdir())) < self.ranks - 1 and time.monotonic() < deadline:
            time.sleep(0.005)  # time for the others to come back too early
        return int, (1,)


@Grader
def save(function: Callable[[dict[str, Any], Path], object]) -> str:
    """Grade function(state, path), which all ranks call to save rank 0's state.

    There is an older file at `path`. A reader may come at any moment, and must find a whole one.
    """
    for ranks, file in ((3, "model.pt"), (2, "step 40.ckpt")):
        with tempfile.TemporaryDirectory() as name:
            path = Path(name, "run", file)
            path.parent.mkdir()
            Path(name, "back").mkdir()
            torch.save({"weights": torch.zeros(1000)}, path)
            Path(name, "kept").hardlink_to(path)  # a reader that has opened the old file
            on_worlds(partial(_save, function), {"": (path,)}, worlds=[ranks])
    return (
        "on 3 and on 2 real ranks, a reader found the complete old file while rank 0 wrote, and "
        "every rank found the new one after the call. A process that had opened the old file "
        "could read it to its end."
    )


def _save(function: Callable[..., object], path: Path) -> Iterator[Check]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    removed, slept, moved, sleep = list[bool](), list[bool](), list[Path](), time.sleep

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rename") and Path(args[0]) == path:
            removed.append(True)
        if event == "os.rename" and Path(args[1]) == path:
            moved.append(Path(args[0]).absolute().parent)

    def watched(seconds: float) -> None:
        slept.append(seconds > PATIENCE / 4)  # for a fixed time, and long enough for this file
        sleep(seconds)

    sys.addaudithook(watch)  # it cannot be taken back, but this process ends soon
    spy = _Spy(path, ranks if rank == 0 else 1)
    with patch.object(time, "sleep", watched):
        function({"weights": torch.ones(1000), "step": spy}, path)
    after = _content(path)
    Path(path.parent.with_name("back"), str(rank)).touch()
    dist.barrier()
    yield from _seen(rank, path, spy.found, after, removed, moved)
    yield any(slept) and (
        "your function sleeps for a fixed time. Another file may take longer: wait for rank 0."
    )
    left = sorted(each.name for each in path.parent.iterdir() if each != path)
    yield left and f"your function leaves {left[0]} beside {path.name}: remove or rename it."


def _seen(
    rank: int, path: Path, found: list[str], after: str, removed: list[bool], moved: list[Path]
) -> Iterator[Check]:
    """Check what a reader found while this rank wrote, and after that."""
    yield rank and found and "your function writes, too, into one place. Only rank 0 should."
    yield (after != "new" and rank == 0) and (
        f"there is {_the(after)} at path when your function is back, not what it should save."
    )
    found = [each for each in (*found, _content(path.parent.with_name("kept"))) if each != "old"]
    yield (found and rank == 0) and (
        f"a reader finds {_the(found[0])} at path while it is written. Write to another name in "
        "the same folder, and rename when all is written."
    )
    yield removed and (
        "the old file is removed first: for a moment there is none. os.replace is one step."
    )
    away = [folder for folder in moved if folder != path.parent.absolute()]
    yield away and (
        f"the file comes from {away[0]}. If that is another disk, it is not renamed but copied, "
        "and can be read half-way. Write it beside its place."
    )
    yield after != "new" and (
        f"there is {_the(after)} at path when your function is back: rank 0 is still writing. All "
        "ranks must wait until it has done."
    )


def _content(path: Path) -> str:
    """The content that a reader finds there: "old", "new", or why there is none."""
    if not path.exists():
        return "no file"
    try:
        weights = torch.load(path, weights_only=False)["weights"]
    except Exception:
        return "a file that cannot be read"
    return "new" if weights.sum() else "old"


def _the(content: str) -> str:
    return f"the {content} file" if content in ("old", "new") else content
