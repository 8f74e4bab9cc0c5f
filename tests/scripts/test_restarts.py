"""A rank dies on one host, later one on the other: torchrun restarts all, and nothing is lost."""

import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from course.chapters.cluster.two_hosts import torchrun, two_hosts
from minidist import launch
from tests.scripts.test_training import NUMBERS, SCRIPTS, last_checkpoint
from tests.support.processes import wait_until

STEPS = 40


def kill(script: Path, rank: int) -> int:
    """As the kernel does when memory runs out; how many are killed."""
    killed = 0
    for process in psutil.process_iter(["cmdline"]):
        ours = str(script) in (process.info["cmdline"] or [])
        if ours and process.environ().get("RANK") == str(rank):  # torchrun has none
            process.kill()
            killed += 1
    return killed


def prepared(folder: Path) -> list[str]:
    """The script, which saves each 10 steps and logs each, and its flags."""
    folder.mkdir()
    script = folder / "fsdp2.py"
    source = (SCRIPTS / "fsdp2.py").read_text()
    script.write_text(source.replace("= 64, 0, 10, 100, 2, ", "= 64, 0, 1, 10, 0, "))
    return [str(script), f"--steps={STEPS}", "--batch=8", f"--checkpoints={folder}"]


def train(command: list[str], victims: list[int]) -> str:
    """What is said on two hosts of one rank; after each checkpoint the next of the victims dies."""
    script = Path(command[0])
    with two_hosts() as (hosts, _), ThreadPoolExecutor(1) as pool:
        run = pool.submit(torchrun, hosts, 1, *command, timeout=300, c10d=hosts[0])
        for step, victim in enumerate(victims, 1):
            saved = script.parent / f"step-000000{step}0"
            wait_until(lambda saved=saved: saved.exists() or run.done())  # type: ignore[misc]
            assert kill(script, victim) == 1
        return "".join(run.result())


def undisturbed(command: list[str]) -> str:
    """On a rank that is in its group already: what the script says."""
    said: list[str] = []
    dist.init_process_group = lambda *_, **__: None
    dist.destroy_process_group = lambda: None
    os.environ |= {"WORLD_SIZE": str(dist.get_world_size())}
    torch.set_num_threads(1)
    sys.argv = command
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(command[0], {"print": lambda line, flush: said.append(line)}, "__main__")
    return "\n".join(said)


@pytest.mark.claim("A5", "F7")
def test_ranks_resume_whichever_host_they_die_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    folders = [tmp_path / "undisturbed", tmp_path / "disturbed"]
    calm, rough = map(prepared, folders)
    said = [launch(undisturbed, 2, calm)[0], train(rough, [0, 1])]
    lines = [NUMBERS.findall(each) for each in said]
    ends = [last_checkpoint(folder, tmp_path / "one.pt", STEPS) for folder in folders]
    assert [int(step) for step, *_ in lines[0]] == list(range(1, STEPS + 1))
    assert set(lines[1]) == set(lines[0])
    for key, tensor in ends[0]["model"].items():
        assert tensor.equal(ends[1]["model"][key]), key
