"""The runbook: its commands are shell, and look where the recipes write."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "hang.md").read_text()
BLOCKS = re.findall(r"^`{3}bash\n(.*?)^`{3}", PAGE, re.MULTILINE | re.DOTALL)


def test_its_commands_are_shell() -> None:
    assert len(BLOCKS) >= 8
    for block in BLOCKS:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_it_finds_what_the_kernel_logs() -> None:
    (pattern,) = re.findall(r'dmesg -T \| grep -E "(.*?)"', PAGE)
    log = """\
NVRM: Xid (PCI:0000:4e:00): 79, pid=4711, GPU has fallen off the bus.
Out of memory: Killed process 4711 (python)
Memory cgroup out of memory: Killed process 4711 (python)
"""
    found = subprocess.run(["grep", "-cE", pattern], input=log, capture_output=True, text=True)
    assert found.stdout == "3\n"


def test_it_looks_where_the_recipes_write() -> None:
    recipes = {
        name: (ROOT / "scripts" / name).read_text() for name in ("slurm.sh", "trainjob.yaml")
    }
    assert '--log-dir "logs/$SLURM_JOB_ID"' in recipes["slurm.sh"]
    assert 'TORCH_FR_DUMP_TEMP_FILE="$PWD/logs/$SLURM_JOB_ID/calls_"' in recipes["slurm.sh"]
    commands = "\n".join(BLOCKS)
    assert "$logs --include=error.json" in commands
    assert "$calls/calls_*" in commands
    assert "logs=logs/$job calls=logs/$job\n" in commands
    assert "logs=/checkpoints/logs calls=/checkpoints " in commands
    for place in ("/checkpoints/logs", "/checkpoints/calls_"):
        assert place in recipes["trainjob.yaml"]
    assert all("scripts/fsdp2.py" in text for text in recipes.values())
    assert "fsdp2.py" in commands
