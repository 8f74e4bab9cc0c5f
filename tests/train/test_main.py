"""The command: under torchrun, which starts it again when a rank dies, and when it is misused."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.plots.training import training as draw
from minidist.train import __main__ as command
from minidist.train.__main__ import main
from tests.train.test_strategies import SMALL, losses_of, records

FLAGS = "--width=16 --layers=2 --heads=2 --context=8 --batch=12 --clip=0.2"
LAUNCHER = "-m torch.distributed.run --standalone --nproc-per-node=2 --monitor-interval=0.1"


@pytest.mark.claim("A5")
def test_when_a_rank_is_killed_the_run_goes_on_from_the_last_checkpoint_to_the_same_losses(
    tmp_path: Path,
) -> None:
    log, folder = tmp_path / "log.jsonl", tmp_path / "checkpoints"
    flags = ["--strategy=ddp", "--steps=8", "--every=2", f"--checkpoint={folder}"]
    command = [sys.executable, *LAUNCHER.split(), "--max-restarts=1", "-m", "tests.train.dies"]
    command += [*FLAGS.split(), *flags, f"--log-file={log}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr, "a rank was killed"
    undisturbed = launch(records, 2, replace(SMALL, strategy="ddp", steps=8))[0]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(8)), "each step once"
    assert losses_of(lines) == losses_of(undisturbed)
    assert {*lines[0]} == {"step", "loss", "tokens_per_second", "bytes_sent", "peak_memory"}
    ends = f"loss {lines[0]['loss']:.3f} at step 0, {lines[-1]['loss']:.3f} at 7"
    assert ends in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["step-6", "step-8"]


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(found) == 21, done.stderr
    steps = [step for step, _ in found]
    assert steps == sorted(steps), "none was lost"
    assert steps[-1] > 20
    assert sum(halves for _, halves in found) > 3, "some were killed during a save"


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


def test_a_flag_that_does_not_fit(says: Callable[..., str]) -> None:
    assert says("--strategy", "single", "--accumulate", "5") == (
        "minidist.train: --batch: expected a multiple of 5 (1 ranks × 5 backward passes), got 12"
    )


def test_a_strategy_that_is_none(
    says: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert says("--strategy", "horovod") == "2"
    assert "argument --strategy: invalid choice: 'horovod'" in capsys.readouterr().err


def test_a_log_that_cannot_be_written(says: Callable[..., str], tmp_path: Path) -> None:
    said = says("--steps", "1", "--log-file", str(tmp_path / "no folder" / "log"))
    assert said.startswith("minidist.train: rank 0: cannot write the log or the plot: [Errno 2]")


def test_a_plot_of_no_known_kind(says: Callable[..., str]) -> None:
    said = says("--steps", "1", "--plot", "run.mp3")
    assert said.endswith("--plot: expected a file ending .png or .pdf or .svg, got run.mp3")


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
