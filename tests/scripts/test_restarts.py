"""A rank dies on one of two hosts: torchrun restarts all, and nothing is lost."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from course.hosts.two_hosts import torchrun, two_hosts
from tests.scripts.test_training import NUMBERS, SCRIPTS, last_checkpoint
from tests.support.processes import wait_until

STEPS = 20


def kill(script: Path, rank: int) -> int:
    """As the kernel does when memory runs out; how many are killed."""
    killed = 0
    for process in psutil.process_iter(["cmdline"]):
        ours = str(script) in (process.info["cmdline"] or [])
        if ours and process.environ().get("RANK") == str(rank):  # torchrun has none
            process.kill()
            killed += 1
    return killed


def train(folder: Path, name: str, victim: int | None = None) -> list[tuple[str, ...]]:
    """Steps, losses and gradient norms of two ranks on each of two hosts, one of which dies."""
    script = folder / f"{name}.py"
    source = (SCRIPTS / f"{name}.py").read_text()
    script.write_text(source.replace("= 64, 0, 10, 100, 2, ", "= 64, 0, 1, 10, 0, "))
    flags = [f"--steps={STEPS}", "--batch=8", f"--checkpoints={folder / 'checkpoints'}"]
    with two_hosts() as (hosts, _), ThreadPoolExecutor(1) as pool:
        run = pool.submit(torchrun, hosts, 2, str(script), *flags, timeout=300, c10d=hosts[0])
        if victim is not None:
            saved = folder / "checkpoints" / "step-00000010"
            wait_until(lambda: saved.exists() or run.done())
            assert kill(script, victim) == 1
        return NUMBERS.findall("".join(run.result()))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, ...]]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, train(folder, "fsdp2")


@pytest.mark.parametrize("victim", [1, 2])  # the second rank on host 0, the first on host 1
def test_ranks_resume_on_both_hosts(
    undisturbed: tuple[Path, list[tuple[str, ...]]],
    victim: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    folder, alike = undisturbed
    lines = train(tmp_path, "fsdp2", victim)
    assert [int(step) for step, *_ in alike] == list(range(1, STEPS + 1))
    assert set(lines) == set(alike)
    ends = [
        last_checkpoint(each / "checkpoints", tmp_path / "one.pt", STEPS)
        for each in (folder, tmp_path)
    ]
    for key, tensor in ends[0]["model"].items():
        assert tensor.equal(ends[1]["model"][key]), key
