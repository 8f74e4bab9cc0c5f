"""A rank dies on one host, later one on the other: torchrun restarts all, and nothing is lost."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from course.hosts.two_hosts import torchrun, two_hosts
from tests.scripts.test_training import NUMBERS, SCRIPTS, last_checkpoint
from tests.support.processes import wait_until

STEPS = 40  # a checkpoint each 10


def kill(script: Path, rank: int) -> int:
    """As the kernel does when memory runs out; how many are killed."""
    killed = 0
    for process in psutil.process_iter(["cmdline"]):
        ours = str(script) in (process.info["cmdline"] or [])
        if ours and process.environ().get("RANK") == str(rank):  # torchrun has none
            process.kill()
            killed += 1
    return killed


def train(folder: Path, victims: list[int]) -> list[tuple[str, ...]]:
    """Steps, losses and gradient norms; after each checkpoint the next of the victims dies."""
    script = folder / "fsdp2.py"
    source = (SCRIPTS / "fsdp2.py").read_text()
    script.write_text(source.replace("= 64, 0, 10, 100, 2, ", "= 64, 0, 1, 10, 0, "))
    flags = [f"--steps={STEPS}", "--batch=8", f"--checkpoints={folder / 'checkpoints'}"]
    with two_hosts() as (hosts, _), ThreadPoolExecutor(1) as pool:
        run = pool.submit(torchrun, hosts, 1, str(script), *flags, timeout=300, c10d=hosts[0])
        for step, victim in enumerate(victims, 1):
            saved = folder / "checkpoints" / f"step-000000{step}0"
            wait_until(lambda saved=saved: saved.exists() or run.done())  # type: ignore[misc]
            assert kill(script, victim) == 1
        return NUMBERS.findall("".join(run.result()))


def test_ranks_resume_whichever_host_they_die_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    folders = [tmp_path / "undisturbed", tmp_path / "disturbed"]
    ends, lines = [], []
    for folder, victims in zip(folders, ([], [0, 1]), strict=True):
        folder.mkdir()
        lines.append(train(folder, victims))
        ends.append(last_checkpoint(folder / "checkpoints", tmp_path / "one.pt", STEPS))
    assert [int(step) for step, *_ in lines[0]] == list(range(1, STEPS + 1))
    assert set(lines[1]) == set(lines[0])
    for key, tensor in ends[0]["model"].items():
        assert tensor.equal(ends[1]["model"][key]), key
