"""An impatient reader presses Ctrl-C again and again, or kills the launcher: nothing stays."""

import builtins
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from minidist import RankError, launch
from minidist.launch.cleanup import Interrupts
from tests.support.processes import living, noted, wait_until

ROOT = Path(__file__).parents[2]

# The script presses Ctrl-C itself while `way`, a method of Member, is at work. It keeps the error,
# as a notebook does, and goes on: its own end would end the ranks too.
SCRIPT = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
import torch.distributed as dist
from minidist import launch
from minidist.launch.process import Member
from tests.support.processes import note

folder, way, ending = sys.argv[1:]
work = getattr(Member, way)

def press_and_work(member):
    os.kill(os.getpid(), signal.SIGINT)
    return work(member)

def stand():
    note(folder, os.getpid())
    if ending == "hangs":
        time.sleep(1000)

setattr(Member, way, press_and_work)
try:
    launch(stand, 3)
except KeyboardInterrupt as error:
    kept = error
    print("interrupted", flush=True)
setattr(Member, way, work)
print(launch(dist.get_rank, 2), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def script(tmp_path: Path, temporary: Path) -> Iterator[Any]:
    """Start the script with its own folder for temporary files."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "ranks").mkdir()

    def start(way: str, ending: str) -> subprocess.Popen[str]:
        command = [sys.executable, tmp_path / "script.py", tmp_path / "ranks", way, ending]
        env = os.environ | {"TMPDIR": str(temporary)}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def folders(temporary: Path) -> set[Path]:
    return set(temporary.glob("minidist-*"))


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout
    return [process.stdout.readline() for _ in range(2)]


@pytest.mark.parametrize("ending", ["hangs", "returns"])
@pytest.mark.parametrize("way", ["kill", "close"])
def test_ctrl_c_while_ranks_are_being_ended_leaves_none(
    way: str, ending: str, tmp_path: Path, temporary: Path, script: Any
) -> None:
    process = script(way, ending)
    if ending == "hangs":
        assert wait_until(lambda: len(noted(tmp_path / "ranks")) == 3)
        process.send_signal(signal.SIGINT)  # the first; the script itself presses three times more
    assert said(process) == ["interrupted\n", "[0, 1]\n"]
    assert len(noted(tmp_path / "ranks")) == 3
    assert living(noted(tmp_path / "ranks")) == set()
    assert folders(temporary) == set()


def test_the_folder_of_a_killed_launcher_is_removed_by_the_next(
    tmp_path: Path, temporary: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(dist.get_rank, 1)  # what it leaves is the fork server, for the launches to come
    process = script("kill", "hangs")
    assert wait_until(lambda: len(noted(tmp_path / "ranks")) == 3)
    (its,) = folders(temporary)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert launch(dist.get_rank, 1) == [0]
    assert folders(temporary) == {its}, "that of a living launcher stays"
    process.kill()
    process.wait()
    assert folders(temporary) == {its}
    assert launch(dist.get_rank, 1) == [0]
    assert folders(temporary) == set()


def test_other_people_s_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "minidist-notes").mkdir()
    (tmp_path / "minidist-notes" / "thesis").touch()
    (tmp_path / "minidist-file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launch(dist.get_rank, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"minidist-notes", "minidist-file"}
    assert (tmp_path / "minidist-notes" / "thesis").exists()


def test_a_broken_output_does_not_hide_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def talks(fails: bool) -> None:
        print("here")
        if fails:
            raise ValueError("the real reason")

    def broken(*words: object) -> None:
        raise BrokenPipeError(*words)

    monkeypatch.setattr(builtins, "print", broken)
    with pytest.raises(RankError, match="ValueError: the real reason"):
        launch(talks, 2, True)
    with pytest.raises(BrokenPipeError, match=r"\[rank 0\] here"):
        launch(talks, 2, False)


# ---- Ctrl-C that waits its turn ----


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    done = []

    def block() -> None:
        with Interrupts():
            press()
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_it_is_allowed_the_first_gets_through_and_the_others_are_one_with_it() -> None:
    done = []

    def block() -> None:
        with Interrupts() as interrupts:
            try:
                with interrupts.allowed():
                    press()
                    done.append("never")
            finally:
                press()
                press()
                done.append("the ending")

    with pytest.raises(KeyboardInterrupt) as caught:
        block()
    assert done == ["the ending"]
    assert caught.value.__context__ is None


def test_one_that_came_early_gets_through_as_soon_as_it_is_allowed() -> None:
    def block() -> None:
        with Interrupts() as interrupts:
            press()
            with interrupts.allowed():
                pytest.fail("too late")

    with pytest.raises(KeyboardInterrupt):
        block()


def test_another_error_does_not_swallow_it() -> None:
    def block() -> None:
        with Interrupts():
            press()
            raise ValueError

    with pytest.raises(KeyboardInterrupt) as caught:
        block()
    assert isinstance(caught.value.__context__, ValueError)


def test_a_handler_of_the_reader_s_own_is_called_and_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def own(number: int, frame: object) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        with Interrupts() as interrupts:
            with interrupts.allowed():
                press()
                press()
                assert len(calls) == 2
            press()
            assert len(calls) == 2
        assert calls == [signal.SIGINT] * 3
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_has_nothing_to_hold_back() -> None:
    seen = []

    def work() -> None:
        with Interrupts() as interrupts, interrupts.allowed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
