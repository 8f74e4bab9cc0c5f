"""One run at a time in a folder of checkpoints; a dead one's lock keeps nobody out."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from minidist import launch
from minidist.train import lock
from minidist.train.lock import Lock
from minidist.train.options import TrainError
from tests.support.processes import wait_until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.05)
    monkeypatch.setattr(lock, "PATIENCE", 0.5)


def test_of_four_that_start_at_once_one_gets_the_folder(tmp_path: Path) -> None:
    def run() -> list[str]:
        lock.BEAT, said, look = 0.05, [], lock.look

        def slowly(path: Path) -> tuple[dict[str, Any], int]:
            found = look(path)
            time.sleep(0.2)  # time enough for the others to look
            return found

        lock.look = slowly
        for each in "ab":
            (folder := tmp_path / each).mkdir(exist_ok=True)
            dist.barrier()
            try:
                mine: Lock | None = Lock(folder)
                said.append("")
            except TrainError as error:
                mine = None
                said.append(str(error))
            dist.barrier()
            if mine:
                mine.release()
                assert not list(folder.iterdir())
        return said

    for number, said in enumerate(zip(*launch(run, 4), strict=True)):
        assert sorted(map(bool, said)) == [False, True, True, True]
        folder = tmp_path / "ab"[number]
        assert max(said).startswith(f"--checkpoint: {folder} is in use by process ")


@pytest.fixture(scope="module")
def dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("machine", "pid", "word"),
    [
        ("here", "dead", "process {pid} on host (since then), which is dead"),
        ("here", "other", "silent for 0.5 s"),  # the number of a dead process, given out again
        ("here", "own", ""),
        ("elsewhere", "dead", "silent for 0.5 s"),
        ("", "", "silent for 0.5 s"),
    ],
)
def test_a_lock_that_nobody_holds_is_taken_over_with_a_word(
    machine: str,
    pid: str,
    word: str,
    dead: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    pids = {"dead": dead, "other": os.getppid(), "own": os.getpid()}
    where = lock.machine() if machine == "here" else machine
    holder = {"machine": where, "pid": pids.get(pid), "host": "host", "since": "then", "id": "x"}
    (tmp_path / "run.lock").write_text(json.dumps(holder) if machine else "")
    Lock(tmp_path).release()
    assert not list(tmp_path.iterdir())
    said = [record.message for record in caplog.records]
    assert (word.format(pid=dead) in said[0]) if word else not said


def elsewhere(folder: Path, sign: Callable[[Path], object]) -> threading.Thread:
    """A holder on another machine, and what it does next."""
    (file := folder / "run.lock").write_text(json.dumps({"machine": "m", "pid": 1, "id": "x"}))

    def live() -> None:
        time.sleep(0.1)
        sign(file)

    (thread := threading.Thread(target=live)).start()
    return thread


def test_a_holder_on_another_machine_counts_as_alive_when_it_touches_its_lock(
    tmp_path: Path,
) -> None:
    lock.PATIENCE = 100  # `soon` puts it back
    thread = elsewhere(tmp_path, os.utime)
    with pytest.raises(TrainError, match=r"in use by process 1 on \?"):
        Lock(tmp_path)
    thread.join()
    elsewhere(tmp_path, os.unlink).join()
    Lock(tmp_path).release()


def test_a_holder_touches_its_lock_until_it_is_released_and_notices_who_takes_it(
    tmp_path: Path,
) -> None:
    mine, file = Lock(tmp_path), tmp_path / "run.lock"
    for _ in range(2):
        os.utime(file, (0, 0))
        assert wait_until(lambda: file.stat().st_mtime > 0, 60)
    mine.check()
    file.unlink()
    mine.check()
    assert file.exists(), "a lock that was deleted is made again"
    other: dict[str, Any] = {"id": "x", "pid": 7, "host": "h", "since": "then"}
    file.write_text(json.dumps(other))
    with pytest.raises(TrainError, match=r"was taken over by process 7 on h \(since then\)"):
        mine.check()
    mine.release()
    assert json.loads(file.read_text()) == other
