"""The grader of a file's saving: a reader looks at it while it is written."""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

from course.verdict import Grader, Wrong, on_ranks

PATIENCE = 1.0  # seconds in which a rank that does not wait for the file has come back


class _Saw(NamedTuple):
    """What was seen on one rank."""

    meanwhile: list[str]  # what a reader found there while this rank wrote; nothing if it did not
    removed: bool
    slept: bool  # for a fixed time, and long enough for this file
    moved_from: list[str]  # folders of the files that were renamed to the path
    after: str  # what this rank found in the file when the function had returned


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
            path, kept = Path(name, "run", file), Path(name, "kept")
            path.parent.mkdir()
            Path(name, "back").mkdir()
            torch.save({"weights": torch.zeros(1000)}, path)
            kept.hardlink_to(path)  # a reader that has opened the old file
            saw: list[_Saw] = on_ranks(_save, ranks, function, path)
            _check_saved(saw, path, _content(kept))
    return (
        "on 3 and on 2 real ranks, a reader found the complete old file while rank 0 wrote, and "
        "every rank found the new one after the call. A process that had opened the old file "
        "could read it to its end."
    )


def _save(function: Callable[..., object], path: Path) -> _Saw:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    removed, slept, moved = list[bool](), list[bool](), list[str]()

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.remove", "os.rename") and Path(args[0]) == path:
            removed.append(True)
        if event == "os.rename" and Path(args[1]) == path:
            moved.append(str(Path(args[0]).absolute().parent))

    sys.addaudithook(watch)  # it cannot be taken back, but this process ends soon
    spy = _Spy(path, ranks if rank == 0 else 1)
    sleep = time.sleep

    def watched(seconds: float) -> None:
        slept.append(seconds > PATIENCE / 4)
        sleep(seconds)

    with patch.object(time, "sleep", watched):
        function({"weights": torch.ones(1000), "step": spy}, path)
    after = _content(path)
    Path(path.parent.with_name("back"), str(rank)).touch()
    dist.barrier()
    return _Saw(spy.found, bool(removed), any(slept), moved, after)


def _content(path: Path) -> str:
    """What a reader finds there: "old", "new", or that it cannot be read."""
    if not path.exists():
        return "no file"
    try:
        weights = torch.load(path, weights_only=False)["weights"]
    except Exception:
        return "a file that cannot be read"
    return "new" if weights.sum() else "old"


def _check_saved(saw: list[_Saw], path: Path, kept: str) -> None:
    first, *others = saw
    writers = [rank for rank, each in enumerate(saw) if each.meanwhile]
    if writers and writers != [0]:
        raise Wrong(f"ranks {writers} write, into one place. Only rank 0 should.")
    if first.after != "new":
        raise Wrong(f"when rank 0 is back it finds {_the(first.after)} at path, not what it saved.")
    if kept != "old" or set(first.meanwhile) != {"old"}:
        found = next((each for each in first.meanwhile if each != "old"), kept)
        raise Wrong(
            f"while rank 0 writes, a reader finds {_the(found)} at path. Write to another name in "
            "the same folder, and rename when all is written."
        )
    if first.removed:
        raise Wrong("the old file is removed first: for a moment there is none. os.replace is one "
                    "step.")  # fmt: skip
    away = [folder for folder in first.moved_from if Path(folder) != path.parent.absolute()]
    if away:
        raise Wrong(
            f"the file comes from {away[0]}. If that is another disk, it is not renamed but "
            "copied, and can be read half-way. Write it beside its place."
        )
    for rank, each in enumerate(others, 1):
        if each.after != "new":
            raise Wrong(
                f"when rank {rank} is back it finds {_the(each.after)}: rank 0 is still writing. "
                "All ranks must wait until it has done."
            )
    if any(each.slept for each in saw):
        raise Wrong(
            "a rank sleeps for a fixed time. Another file may take longer: wait for rank 0."
        )
    left = sorted(each.name for each in path.parent.iterdir() if each != path)
    if left:
        raise Wrong(f"beside the file there is left {left[0]}.")


def _the(content: str) -> str:
    return f"the {content} file" if content in ("old", "new") else content
