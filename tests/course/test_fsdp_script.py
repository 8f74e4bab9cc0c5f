"""The script that the chapter on FSDP ends with: it trains, and resumes on fewer ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

BOOK = Path(__file__).parents[2] / "book"
MINE = """
import torch
from course.training import models

class GPT(models.GPT):
    def __init__(self):
        super().__init__(16, width=16, layers=2, heads=2, context=8)

    def init_weights(self):
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, 0.02)

def batches(start):
    torch.manual_seed(start)
    for _ in range(start, start + 2):
        ids = torch.randint(16, (2, 9))
        yield ids[:, :-1], ids[:, 1:]
"""


def script() -> str:
    """The chapter's script, for CPUs, with a checkpoint in every second step."""
    blocks = re.findall(r"^```python\n(.*?)^```", (BOOK / "fsdp.md").read_text(), re.S | re.M)
    (found,) = (block for block in blocks if "dcp.save" in block)
    found = found.replace('"cuda"', '"cpu"').replace('"nccl"', '"gloo"').replace("% 1000", "% 2")
    lines = [line for line in found.splitlines() if "set_device" not in line]
    return "\n".join([*lines, 'print("from", start, "to", step)'])


def run(folder: Path, ranks: int, *args: str) -> str:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, f"--nproc_per_node={ranks}", "train.py", *args]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def test_the_script_trains_and_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "train.py").write_text(script())
    assert "from 0 to 2" in run(tmp_path, 4)
    assert "from 2 to 4" in run(tmp_path, 2, "checkpoints/2")
    assert sorted(each.name for each in (tmp_path / "checkpoints").iterdir()) == ["2", "4"]
