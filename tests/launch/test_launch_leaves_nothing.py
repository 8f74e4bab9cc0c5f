"""After a launch, however it went, nothing of it is left."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import minidist
from minidist import RankError, launch
from tests.support.processes import living, note, noted

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def with_helpers(folder: Path, ending: str) -> None:
    """Start processes of all sorts, then return, raise or hang."""
    commands = ["exec sleep 1000", "sleep 1000 & wait"]
    helpers = [subprocess.Popen(command, shell=True) for command in commands]
    stubborn = os.fork()
    if not stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    for pid in (os.getpid(), stubborn, *(helper.pid for helper in helpers)):
        note(folder, pid)
    dist.barrier()
    if ending == "raises" and dist.get_rank() == 1:
        raise ValueError("with helpers running")
    if ending == "dies" and dist.get_rank() == 1:
        os._exit(1)
    if ending == "hangs":
        time.sleep(1000)


@pytest.mark.parametrize("ending", ["returns", "raises", "dies", "hangs"])
def test_no_process_is_left(ending: str, tmp_path: Path) -> None:
    launch(dist.get_rank, 1)  # what it leaves is the fork server, for the launches to come
    before = psutil.Process().children(recursive=True)
    if ending == "returns":
        launch(with_helpers, 2, tmp_path, ending)
    else:
        with pytest.raises(RankError):
            launch(with_helpers, 2, tmp_path, ending, timeout=2)
    assert len(noted(tmp_path)) == 8
    assert living(noted(tmp_path)) == set()
    after = psutil.Process().children(recursive=True)
    assert {child.pid for child in after} == {child.pid for child in before}, "zombies count too"


@on_linux
def test_no_file_thread_or_folder_is_left_over_many_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes_fails(number: int) -> None:
        if number % 4 == 1:
            raise ValueError(number)
        if number % 4 == 2:
            os._exit(1)

    def open_files() -> list[str]:
        return sorted(os.readlink(f"/proc/self/fd/{fd.name}") for fd in descriptors())

    def descriptors() -> list[Path]:
        return [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]

    launch(dist.get_rank, 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, threads = len(open_files()), threading.active_count()
    for number in range(20):
        try:
            launch(sometimes_fails, 2, number)
        except RankError:
            assert number % 4 in (1, 2)
        assert list(tmp_path.iterdir()) == []
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


def test_a_fork_server_that_died_is_replaced() -> None:
    launch(dist.get_rank, 1)
    children = psutil.Process().children()
    (server,) = [child for child in children if "forkserver" in " ".join(child.cmdline())]
    server.kill()
    assert living([server.pid]) == set()
    assert launch(dist.get_rank, 2) == [0, 1]
