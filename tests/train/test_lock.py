"""One run at a time in a folder of checkpoints; a dead one's lock keeps nobody out."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from minidist import launch
from minidist.train import lock
from minidist.train.lock import Lock
from minidist.train.options import TrainError

HOLDS = "import sys, time, pathlib, minidist.train.lock as lock\n"
HOLDS += "lock.Lock(pathlib.Path(sys.argv[1])); print('holds', flush=True); time.sleep(600)"


def test_of_four_that_start_at_once_one_gets_the_folder(tmp_path: Path) -> None:
    def run() -> list[str]:
        lock.PATIENCE, said = 0.5, []
        for each in range(9):
            (folder := tmp_path / str(each)).mkdir(exist_ok=True)
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
        where = f"--checkpoint: {tmp_path / str(number)} is in use by process "
        assert all(each.startswith(where) for each in said if each)


def test_a_lock_goes_from_one_to_the_next_and_never_to_two(tmp_path: Path) -> None:
    def run() -> int:
        lock.PATIENCE = 100
        for _ in range(20):
            mine = Lock(tmp_path)
            (tmp_path / "alone").mkdir()  # raises if another one is here
            (tmp_path / "alone").rmdir()
            mine.release()
        return 0

    assert launch(run, 3) == [0, 0, 0]
    assert not list(tmp_path.iterdir())


def test_a_suspended_run_holds_its_folder_until_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.5)
    command = [sys.executable, "-c", HOLDS, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "holds\n"
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(TrainError, match=rf"in use by process {other.pid} on \S+ \(since 2"):
            Lock(tmp_path)
        other.kill()
    Lock(tmp_path).release()


def test_a_second_lock_of_the_same_process_takes_over(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    second = Lock(tmp_path)
    first.release()  # as an abandoned run does later
    assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")
    second.release()
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    Lock(tmp_path).release()
    [record] = caplog.records
    assert record.message.endswith("cannot be locked (No locks available): start no second run")
