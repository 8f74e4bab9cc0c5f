"""The container in which a class is graded: what it keeps from submissions, and that it builds."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.work import ROOT

SCRIPT, RECIPE = ROOT / "tools" / "grade.sh", ROOT / "tools" / "Dockerfile"
KEPT = [
    "--network none",
    "--memory 16g",
    "--pids-limit 4096",
    "--read-only",
    "--cap-drop ALL",
    "--security-opt no-new-privileges",
    '--volume "$submissions:/submissions:ro"',
]


def engine() -> str | None:
    """Docker or podman, if it answers."""
    for name in filter(shutil.which, ("docker", "podman")):
        if not subprocess.run([name, "info"], capture_output=True, check=False).returncode:
            return name
    return None


@pytest.mark.parametrize("option", KEPT)
def test_the_container_keeps_submissions_from(option: str) -> None:
    assert option in SCRIPT.read_text()


def test_the_shell_accepts_the_script() -> None:
    shellcheck = str(Path(sys.executable).with_name("shellcheck"))
    done = subprocess.run([shellcheck, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_recipe_takes_pinned_packages_and_what_is_there() -> None:
    recipe = RECIPE.read_text()
    (names,) = re.findall(r"'\^\((.+)\)==", recipe)
    pinned = (ROOT / "requirements.txt").read_text() + (ROOT / "constraints.txt").read_text()
    for name in names.split("|"):
        assert re.search(rf"^{name}==", pinned, re.MULTILINE), name
    for copied in re.findall(r"^COPY (.+) \S+$", recipe, re.MULTILINE):
        assert all((ROOT / each).exists() for each in copied.split())
    assert '"--uid", "60001"' in recipe, "submissions run as other users than the command"


def test_the_container_grades(tmp_path: Path) -> None:
    if not engine():
        pytest.skip("no docker or podman answers here")
    (tmp_path / "class" / "anna").mkdir(parents=True)
    done = subprocess.run(
        [SCRIPT, "class", "grades", "--require", "ring"], cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    assert "anna: 0 of" in (tmp_path / "grades" / "sheets" / "anna.md").read_text()
