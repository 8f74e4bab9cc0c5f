"""After a launch, however it went, nothing of it is left: no process, file, folder or port."""

import builtins
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain, repeat
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import RankError, launch
from minidist.launch import cleanup
from minidist.launch.cleanup import Interrupts, job
from minidist.launch.process import Launcher, kill_tree
from tests.support.processes import living, note, noted, ours, wait_until

ROOT = Path(__file__).parents[2]


def with_helpers(folder: Path, ending: str) -> None:
    """Start processes of all sorts, then return, die or hang."""
    commands = ["exec sleep 1000", "sleep 1000 & wait"]
    helpers = [subprocess.Popen(command, shell=True) for command in commands]
    stubborn = os.fork()
    if not stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    detached = []
    if ending != "dies":  # one that kills itself leaves nobody who knows of these
        detached.append(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
        orphan = ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]
        detached.append(int(subprocess.run(orphan, capture_output=True, check=True).stdout))
    for pid in (os.getpid(), stubborn, *(helper.pid for helper in helpers), *detached):
        note(folder, pid)
    dist.barrier()
    if ending == "dies" and dist.get_rank() == 1:
        os._exit(1)
    if ending == "hangs":
        time.sleep(1000)


@pytest.mark.parametrize("ending", ["returns", "dies", "hangs"])
def test_no_process_is_left(ending: str, tmp_path: Path) -> None:
    launch(dist.get_rank, 1)  # what it leaves is the fork server, for the launches to come
    before = psutil.Process().children(recursive=True)
    if ending == "returns":
        launch(with_helpers, 2, tmp_path, ending)
    for timeout in (2, 10, 60):  # on a busy machine ranks may take a while to begin
        if len(noted(tmp_path)) < 8:
            with pytest.raises(RankError):
                launch(with_helpers, 2, tmp_path, ending, timeout=timeout)
    assert len(noted(tmp_path)) >= 8
    assert living(noted(tmp_path)) == set()
    after = psutil.Process().children(recursive=True)
    assert {child.pid for child in after} == {child.pid for child in before}, "zombies count too"


def test_ctrl_c_leaves_no_guard_that_is_slow_to_tidy_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_rm = tmp_path / "rm"
    slow_rm.write_text('#!/bin/sh\nPATH=/bin:/usr/bin\nsleep 0.6\nexec rm "$@"\n')
    slow_rm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(KeyboardInterrupt) as kept, job(Interrupts()):  # it keeps Popen
        raise KeyboardInterrupt
    assert {child.pid for child in psutil.Process().children()} == before, kept


def test_ctrl_c_while_a_rank_is_being_started_waits_until_it_has_a_pid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch(dist.get_rank, 1)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    connect = forkserver.connect_to_new_process

    def connect_and_press(fds: Any) -> Any:
        ends = connect(fds)  # the server has forked, and the child waits for what it shall do
        os.kill(os.getpid(), signal.SIGINT)
        return ends

    monkeypatch.setattr(forkserver, "connect_to_new_process", connect_and_press)
    with pytest.raises(KeyboardInterrupt) as kept:  # its traceback keeps the child's pipe open
        launch(dist.get_rank, 2)
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after == before, kept


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_file_thread_or_folder_is_left_and_other_people_s_folders_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(how: str) -> None:
        if how == "raise":
            raise ValueError(how)
        if how == "die":
            os._exit(1)

    def open_files() -> list[str]:
        found = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return sorted(map(os.readlink, found))

    launch(dist.get_rank, 1)
    (tmp_path / "minidist-notes").mkdir()
    theirs = [tmp_path / "minidist-notes", tmp_path / "minidist-notes" / "lock"]
    theirs[1].touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()  # what earlier tests have kept must not be closed meanwhile
    before, threads = len(open_files()), threading.active_count()
    for how in ["return", "raise", "die"] * 2:
        with nullcontext() if how == "return" else pytest.raises(RankError):
            launch(fails, 2, how)
        assert sorted(tmp_path.rglob("*")) == theirs
    assert len(open_files()) == before, open_files()
    assert threading.active_count() == threads


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    connections = process.net_connections(kind="tcp")
    return {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}


def test_ranks_listen_on_the_loopback_interface_only_and_only_while_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ports() -> set[tuple[str, int]]:
        tensor = torch.ones(10)
        minidist.all_reduce(tensor)
        dist.all_reduce(tensor)
        dist.new_group([0, 1])
        return listening(psutil.Process())

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")  # ours comes first
    mine = listening(psutil.Process())
    open_then = set.union(*launch(ports, 3))
    assert open_then, "Gloo's ranks do listen, so there is something to see"
    assert {address for address, _ in open_then} <= {"127.0.0.1", "::1"}
    assert listening(psutil.Process()) == mine
    for address, port in open_then:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=5).close()


# The script presses Ctrl-C itself while a rank is killed and while the folder is removed. It keeps
# the error, as a notebook does, and goes on: its own end would end the ranks too.
SCRIPT = f"""
import ctypes, os, signal, subprocess, sys, tempfile, time
sys.path.insert(0, {str(ROOT)!r})
import torch.distributed as dist
from minidist import launch
from minidist.launch.process import ForkedProcess
from tests.support.processes import note

folder, ending = sys.argv[1:]
busy = [(ForkedProcess, "kill"), (tempfile.TemporaryDirectory, "cleanup")]
works = [getattr(owner, way) for owner, way in busy]

def pressed(work):
    def press_and_work(self):
        os.kill(os.getpid(), signal.SIGINT)
        return work(self)
    return press_and_work

def stand():
    note(folder, os.getpid())
    if ending == "hangs":
        time.sleep(1000)
    if ending == "are orphans":
        note(folder, subprocess.Popen(["sleep", "1000"]).pid)
        if dist.get_rank() == 1:
            ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter's lock
        os.kill(os.getpid(), signal.SIGSTOP if dist.get_rank() == 2 else signal.SIGCONT)
        time.sleep(1000)

for (owner, way), work in zip(busy, works):
    setattr(owner, way, pressed(work))
try:
    launch(stand, 3)
except KeyboardInterrupt as error:
    kept = error
    print("interrupted", flush=True)
for (owner, way), work in zip(busy, works):
    setattr(owner, way, work)
print(launch(dist.get_rank, 2), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def script(tmp_path: Path, temporary: Path) -> Iterator[Any]:
    """Start the script with its own folder for temporary files."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "ranks").mkdir()

    def start(ending: str) -> subprocess.Popen[str]:
        command = [sys.executable, tmp_path / "script.py", tmp_path / "ranks", ending]
        env = os.environ | {"TMPDIR": str(temporary)}
        pipe, own = subprocess.PIPE, {"start_new_session": True}
        started.append(subprocess.Popen(command, stdout=pipe, text=True, env=env, **own))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout
    return [process.stdout.readline() for _ in range(2)]


def test_ctrl_c_while_ranks_are_being_ended_leaves_none(
    tmp_path: Path, temporary: Path, script: Any
) -> None:
    process = script("hangs")
    assert wait_until(lambda: len(noted(tmp_path / "ranks")) == 3)
    process.send_signal(signal.SIGINT)  # the first; the script itself presses four times more
    assert said(process) == ["interrupted\n", "[0, 1]\n"]
    assert len(noted(tmp_path / "ranks")) == 3
    assert living(noted(tmp_path / "ranks")) == set()
    assert list(temporary.glob("minidist-*")) == []


def test_ctrl_c_while_the_first_rank_is_starting_ends_it_too(script: Any) -> None:
    process = script("hangs")

    def family() -> list[psutil.Process]:
        return psutil.Process(process.pid).children(recursive=True)

    assert wait_until(lambda: any("forkserver" in " ".join(c.cmdline()) for c in family()))
    os.killpg(process.pid, signal.SIGINT)  # the whole group, as a terminal does: the server too
    assert said(process) == ["interrupted\n", "[0, 1]\n"]
    assert wait_until(lambda: len(family()) == 2), "the fork server and its tracker"


COLD = """
import os, signal, sys, threading, time
from multiprocessing import forkserver
from minidist import launch
from minidist.launch import process

def press():
    while not forkserver._forkserver._forkserver_pid:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

process.PRELOAD.append("asleep")
threading.Thread(target=press).start()
try:
    launch(os.getpid, 2)
except KeyboardInterrupt:
    process.PRELOAD.pop()
    print(launch(int, 2))
"""


def test_ctrl_c_does_not_wait_for_a_server_that_still_loads_torch(tmp_path: Path) -> None:
    (tmp_path / "asleep.py").write_text("import time; time.sleep(1000)")
    (tmp_path / "cold.py").write_text(COLD)
    command = [sys.executable, tmp_path / "cold.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("[0, 0]\n", "")


def test_nothing_is_left_of_a_launcher_that_was_killed(
    tmp_path: Path, temporary: Path, script: Any
) -> None:
    """One of its ranks is deep in C, one is stopped, and each has started a process."""
    process = script("are orphans")
    assert wait_until(lambda: len(noted(tmp_path / "ranks")) == 6)
    process.kill()
    assert living(noted(tmp_path / "ranks")) == set()
    assert wait_until(lambda: not ours(temporary)), ours(temporary)


def test_a_broken_output_does_not_hide_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def talks(fails: bool) -> None:
        print("here")
        if fails:
            raise ValueError("the real reason")

    def broken(*words: object, **_: object) -> None:
        raise BrokenPipeError(*words)

    monkeypatch.setattr(builtins, "print", broken)
    monkeypatch.setattr(sys.modules[launch.__module__], "PRINT_EVERY", 60.0)
    with pytest.raises(RankError, match="ValueError: the real reason"):
        launch(talks, 2, True)
    with pytest.raises(BrokenPipeError, match=r"\[rank 0\] here"):
        launch(talks, 2, False)


# ---- the fork server, stopped ranks, and processes made by os.fork() ----


@pytest.mark.parametrize("when", ["before", "while ranks run"])
def test_a_fork_server_that_dies_is_blamed_itself_and_replaced(
    when: str, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kills_the_server() -> None:
        note(tmp_path, os.getpid())
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        if dist.get_rank() == 0:
            time.sleep(1000)

    launch(dist.get_rank, 1)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    if when == "before":
        children = psutil.Process().children()
        (server,) = [child for child in children if "forkserver" in " ".join(child.cmdline())]
        server.kill()
        assert living([server.pid]) == set()
    else:
        with pytest.raises(RuntimeError, match=r"fork server, .* has died") as caught:
            launch(kills_the_server, 3)
        assert not isinstance(caught.value, RankError)
        assert len(noted(tmp_path)) == 3
        assert living(noted(tmp_path)) == set()
        assert list(temporary.glob("minidist-*")) == []
    assert launch(dist.get_rank, 2) == [0, 1]


def test_a_fork_server_that_dies_while_it_starts_a_rank_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def died(*_: object) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("multiprocessing.forkserver.read_signed", died)
    with pytest.raises(RuntimeError, match=r"fork server, .* has died"):
        launch(dist.get_rank, 2)


def test_a_fork_server_that_is_still_dying_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, refusals = forkserver.connect_to_new_process, iter(range(2))

    def refuse_twice(fds: Any) -> Any:
        for _ in refusals:
            raise ConnectionRefusedError
        return connect(fds)

    monkeypatch.setattr(forkserver, "connect_to_new_process", refuse_twice)
    assert launch(dist.get_rank, 2) == [0, 1]


def test_a_rank_that_stops_while_it_reports_ends_at_the_deadline_or_at_the_caller_s_own() -> None:
    def stops() -> None:
        if dist.get_rank() == 1:
            Launcher.report = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore

    def ring(*_: object) -> None:
        raise TimeoutError("the caller's own")

    for timeout in (3, 10, 60):  # on a busy machine ranks may take a while to begin
        with pytest.raises(RankError) as caught:
            launch(stops, 2, timeout=timeout)
        if caught.value.ranks == (1,):
            break
    said = f"rank 1 did not end within {timeout} s\nrank 0 had returned"
    assert str(caught.value).startswith(said)
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        with pytest.raises(TimeoutError, match="the caller's own"):
            launch(stops, 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_process_that_one_listing_missed_is_killed_nevertheless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A parent that dies while its children are listed hands them to one that was listed already.
    leader, child = (subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2))
    dead = 2**30
    listings = chain([[dead]], repeat([dead, child.pid]))
    monkeypatch.setitem(kill_tree.__globals__, "_descendants", lambda _: next(listings))
    kill_tree(leader.pid)
    assert [each.wait(10) for each in (child, leader)] == [-signal.SIGKILL] * 2


def test_a_process_made_by_fork_is_refused_by_name() -> None:
    launch(dist.get_rank, 1)
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            launch(dist.get_rank, 1)
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader) as said:
        assert said.read().startswith("a process made by os.fork() cannot launch ranks")


# ---- Ctrl-C that waits its turn ----


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_for_the_end_of_the_block_also_of_one_that_raises() -> None:
    done = []

    def block(error: type[Exception] | None) -> None:
        with Interrupts():
            press()
            done.append("all of it")
            if error:
                raise error

    for error in (None, ValueError):
        with pytest.raises(KeyboardInterrupt) as caught:
            block(error)
        assert isinstance(caught.value.__context__, error or type(None))
    assert done == ["all of it"] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_it_is_allowed_the_first_gets_through_and_the_others_are_one_with_it() -> None:
    done = []

    def block(early: bool) -> None:
        with Interrupts() as interrupts:
            try:
                if early:
                    press()
                with interrupts.allowed():
                    press()
                    done.append("never")
            finally:
                press()
                press()
                done.append("the ending")

    for early in (False, True):
        with pytest.raises(KeyboardInterrupt) as caught:
            block(early)
        assert caught.value.__context__ is None
    assert done == ["the ending"] * 2


def test_ctrl_c_while_a_process_starts_is_delivered_as_soon_as_it_has() -> None:
    done = []

    def block(allowed: bool) -> None:
        with Interrupts() as interrupts, interrupts.allowed() if allowed else nullcontext():
            with interrupts.held():
                press()
                done.append("all of it")
            done.append("the next one")
            press()
            done.append("and what follows")

    with pytest.raises(KeyboardInterrupt):
        block(allowed=True)
    assert done == ["all of it"]
    with pytest.raises(KeyboardInterrupt):
        block(allowed=False)
    assert done[1:] == ["all of it", "the next one", "and what follows"]


def test_in_another_thread_ctrl_c_is_left_alone() -> None:
    def block() -> object:
        with Interrupts() as interrupts, interrupts.allowed():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(block).result() is signal.default_int_handler


class Started:
    """In the place of a process."""

    log: list[str] = []  # noqa: RUF012

    def __init__(self, folder: Path, target: Any, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        self.log.append(f"kill {self.pid}")

    def close(self) -> None:
        self.log.append(f"close {self.pid}")


def test_the_guard_knows_what_runs_and_all_are_killed_before_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "ForkedProcess", Started)
    monkeypatch.setattr(Started, "log", log := [])
    told = SimpleNamespace(write=lambda line: log.append(line.decode().strip()))
    ours = cleanup.Job(tmp_path, told, Interrupts())  # type: ignore[arg-type]
    first, second = (ours.start(lambda: None, pid) for pid in (7, 8))
    ours.end(first)
    ours.end(second)
    assert log[:2] == ["-7 7", "-7 7 -8 8"]
    assert log[2:] == ["kill 7", "close 7", "-8 8", "kill 8", "close 8", ""]
    two = [ours.start(lambda: None, pid) for pid in (1, 2)]
    log.clear()
    ours.end(*two)
    assert log == ["kill 1", "kill 2", "close 1", "close 2", ""]


def test_the_guard_kills_what_is_left_stopped_or_not_and_removes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "minidist-x"
    (folder / "deeper").mkdir(parents=True)
    left = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2)]
    left[0].send_signal(signal.SIGSTOP)
    guard = ["/bin/sh", "-c", cleanup._GUARD, "minidist-guard", str(folder)]
    ended, running = (each.pid for each in left)
    lines = f"-{running} {running}\n-{ended} {ended} -{running} {running}\n"
    subprocess.run(guard, input=lines.encode(), check=False, timeout=60)
    assert [each.wait(10) for each in left] == [-signal.SIGKILL] * 2
    assert not folder.exists()


def test_the_guard_outlives_what_ends_the_launcher_s_group() -> None:
    before = {child.pid for child in psutil.Process().children()}
    with job(Interrupts()):
        (guard,) = {child.pid for child in psutil.Process().children()} - before
        assert os.getpgid(guard) == guard != os.getpgid(0)


def test_a_handler_of_the_reader_s_own_is_called_and_put_back() -> None:
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
        with Interrupts() as interrupts, interrupts.allowed():
            press()
        assert len(calls) == 4, "once"
        assert signal.getsignal(signal.SIGINT) is own
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Interrupts() as interrupts, interrupts.allowed():
            press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
