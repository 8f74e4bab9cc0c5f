"""The README's examples run as printed, and its picture is what the simulator draws."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tools.picture import PICTURE, svg

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SHOWN = [
    (code, output)
    for (kind, code), (next_kind, output) in pairwise(BLOCKS)
    if (kind, next_kind) == ("python", "text")
]
(SCRIPT,) = (code for kind, code in BLOCKS if kind == "python" and "init_process_group" in code)


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_three_examples_with_output() -> None:
    assert len(SHOWN) == 3


@pytest.mark.parametrize(("code", "output"), SHOWN)
def test_example_prints_what_is_printed(code: str, output: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    assert run(sys.executable, script) == output


def test_script_runs_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "average.py"
    script.write_text(SCRIPT)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    assert run(*launcher, "2", script) == "[0.5, 0.5, 0.5, 0.5, 0.5, 0.5]\n"


def test_picture_is_not_stale() -> None:
    assert PICTURE.read_text() == svg(), "`make picture` makes it again"


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make (\w+)", README)) - {"and", "us"}))
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_paths_in_the_map_exist() -> None:
    for path in re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE):
        assert (ROOT / path).exists(), path
