"""The command: what it writes, how it ends at a signal, and what it says when it is misused."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import psutil
import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.plots.training import training as draw
from minidist.train import __main__ as command
from minidist.train.__main__ import main
from minidist.train.options import TrainError
from minidist.train.report import Report
from tests.support.processes import wait_until

FLAGS = "--width=16 --layers=2 --heads=2 --context=8 --batch=12 --clip=0.2"
LAUNCHER = "-m torch.distributed.run --standalone --nproc-per-node=2 --monitor-interval=0.1"


def test_a_rank_with_a_gpu_connects_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Any, Any]] = []
    monkeypatch.setattr(command, "own_device", lambda: torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: found.append(("set", device)))
    noted = lambda backend, **how: found.append((backend, how["device_id"]))  # noqa: E731
    monkeypatch.setattr(dist, "init_process_group", noted)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with command.process_group(9.0):
        device = torch.device("cuda:1")
        assert found == [("set", device), ("cpu:gloo,cuda:nccl", device)]


def test_twenty_kills_at_random_moments_leave_the_newest_checkpoint_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.train.killed", str(tmp_path), "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(found) == 21, done.stderr
    steps = [step for step, _ in found]
    assert steps == sorted(steps), "none was lost"
    assert steps[-1] > 20
    assert sum(halves for _, halves in found) > 0, "some were killed during a save"


def test_the_picture_shows_what_is_known(tmp_path: Path) -> None:
    record: dict[str, Any] = {"loss": 4.0, "bytes_sent": None, "peak_memory": 10**8}
    figure = draw([{"step": step, "tokens_per_second": 9e3, **record} for step in range(3)])
    assert [axes.get_title("left") for axes in figure.axes] == [
        "loss",
        "thousand tokens per second",
        "MB held by a rank",
    ]
    figure.savefig(tmp_path / "run.png")
    assert matplotlib.image.imread(tmp_path / "run.png")[..., 3].std() > 0, "something is drawn"


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What the command says as it ends, in this process."""

    def call(*flags: str) -> str:
        monkeypatch.setattr(sys, "argv", ["minidist.train", *FLAGS.split(), *flags])
        with pytest.raises(SystemExit) as caught:
            main()
        return str(caught.value)

    threads = torch.get_num_threads()
    yield call
    torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_strategy_that_is_none(
    says: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert says("--strategy", "horovod") == "2"
    assert "argument --strategy: invalid choice: 'horovod'" in capsys.readouterr().err


def test_a_path_without_letters_is_not_the_current_folder(
    says: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("checkpoint", "log-file", "plot"):
        assert says(f"--{flag}", "") == "2"
        assert f"argument --{flag}: expected a path, got ''" in capsys.readouterr().err


FIVE = {"RANK": "0", "WORLD_SIZE": "5"}
WRONG: list[tuple[str, dict[str, str], str]] = [
    ("--accumulate=8", {}, "--batch: expected a multiple of 8 (1 ranks × 8 backward passes), "
     "got 12"),
    ("", FIVE, "--batch: expected a multiple of 5 (5 ranks × 1 backward passes), got 12"),
    ("", FIVE | {"WORLD_SIZE": "x"}, "WORLD_SIZE: expected at least 1, got 'x'"),
    ("", {"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE: expected at least 1, got '0'"),
    ("--timeout=nan", {}, "--timeout: expected from 0 to 1e+06 seconds, got nan"),
    ("--timeout=-1", {}, "--timeout: expected from 0 to 1e+06 seconds, got -1.0"),
    ("--timeout=inf", {}, "--timeout: expected from 0 to 1e+06 seconds, got inf"),
    ("--lr=inf", {}, "--lr: expected at least 0 and less than inf, got inf"),
    ("--plot=x.mp3", {}, "rank 0: --plot: expected a file ending .png or .pdf or .svg, got x.mp3"),
    ("--plot=pipe.svg", {}, "rank 0: --plot: expected a regular file, got pipe.svg"),
    ("--log-file=pipe.svg", {}, "rank 0: --log-file: expected a regular file, got pipe.svg"),
    ("--log-file=.", {}, "rank 0: --log-file: expected a regular file, got ."),
    ("--log-file=no/log", {}, "rank 0: cannot write the log or the plot: [Errno 2] No such file or "
     "directory: 'no/log'"),
]  # fmt: skip


def test_what_does_not_fit_is_refused_in_a_sentence_before_any_rank_waits(
    says: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.svg")
    offenders = []
    for flags, environment, said in WRONG:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            found = says("--steps=1", *flags.split())
        if dist.is_initialized():
            dist.destroy_process_group()
        if found != f"minidist.train: {said}" or not Path("pipe.svg").is_fifo():
            offenders.append(f"{flags} {environment}: {found}\nexpected: {said}")
    assert not offenders, "\n".join(offenders)


def test_a_log_is_added_to_and_steps_that_are_made_again_are_not_there_twice(
    tmp_path: Path,
) -> None:
    link, log = tmp_path / "link", tmp_path / "log"
    link.symlink_to(log)
    log.write_text("not\nours")

    def run(*flags: str) -> None:
        os.environ.pop("RANK")  # as started without torchrun
        dist.destroy_process_group()
        start = ["minidist.train", *FLAGS.split(), "--every=2", f"--log-file={link}"]
        for more in ("--steps=3", f"--steps=5 --checkpoint={tmp_path / 'run'}"):
            sys.argv = [*start, *more.split()]
            main()
        with log.open("a") as file:
            file.write('{"step": 5}\n{"step": 6, "lo')  # by a run that was killed
        sys.argv[-2] = "--steps=7"
        main()
        for flags in ("--steps=7", "--steps=2"):
            sys.argv[-2] = flags
            main()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    launch(run, 1)
    assert link.is_symlink()
    lines = log.read_text().splitlines()
    assert lines[:2] == ["not", "ours"]
    assert [json.loads(line)["step"] for line in lines[2:]] == [*range(3), *range(7)]


def test_a_second_run_is_refused_and_a_signal_to_a_rank_ends_the_first_with_a_checkpoint(
    says: Callable[..., str], tmp_path: Path
) -> None:
    log, folder = tmp_path / "log.jsonl", tmp_path / "run"
    command = [sys.executable, *LAUNCHER.split(), "-m", "minidist.train", *FLAGS.split()]
    command += ["--steps=100000", "--every=100000", f"--checkpoint={folder}", f"--log-file={log}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    first = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: log.exists() and log.read_text().count("\n") > 2)
        said = says(f"--checkpoint={folder}")
        assert said.startswith(f"minidist.train: rank 0: --checkpoint: {folder} is in use by proc")
        psutil.Process(first.pid).children()[1].send_signal(signal.SIGUSR1)
        _, stderr = first.communicate(timeout=600)
    finally:
        first.kill()
    assert first.returncode == 1, "torchrun's of a rank that fails: no operator calls the job done"
    assert "exitcode  : 143" in stderr
    *_, line = log.read_text().splitlines()
    step = json.loads(line)["step"]
    assert f"minidist.train: stopped by a signal after step {step}, which is saved\n" in stderr
    assert [path.name for path in folder.iterdir()] == [f"step-{step + 1}"]


def test_a_full_disk_under_the_log_or_the_plot_ends_no_run(tmp_path: Path) -> None:
    def run(flag: str) -> str:
        report = Report(first=0, **{"log": None, "plot": None, flag: tmp_path / f"{flag}.svg"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        for step in range(2):
            report.add({"step": step, "loss": 4.0})
        with pytest.raises(TrainError) as caught:
            report.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        return str(caught.value)

    for flag in ("log", "plot"):
        said = f"rank 0: cannot write the {flag}: [Errno 27] File too large"
        assert launch(run, 2, flag) == [said] * 2


def test_a_port_in_use() -> None:
    """Rank 0 cannot listen there; rank 1 is never answered there."""

    def run(port: str) -> list[str]:
        said = []
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        sys.argv = ["minidist.train", "--timeout=1"]
        for rank in "01":
            os.environ["RANK"] = rank
            with pytest.raises(SystemExit) as caught:
                main()
            said.append(str(caught.value))
        return said

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        [(first, second)] = launch(run, 1, port)
    at = f"127.0.0.1:{port} (MASTER_ADDR and MASTER_PORT)"
    where = f"minidist.train: the ranks do not meet at {at}"
    assert first.startswith(f"{where}: ")
    assert "EADDRINUSE" in first
    assert "\n" not in first
    assert second == f"{where}: no answer in 1 s"
