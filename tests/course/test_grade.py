"""A class is graded: what a submission does costs its own points, and nobody else's."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from course.ask import __main__ as command
from course.submissions.apart import Limits, grade_apart
from tools.work import ROOT

RING = (ROOT / "lib" / "from_scratch" / "ring.py").read_text()
DELETES = "import os\nimport shutil\n\nshutil.rmtree(os.getcwd())\n"
FORKS = """
import os
import subprocess

for _ in range(20):
    if not os.fork():
        os.setsid()
        os.execvp("sleep", ["sleep", "987654"])
"""
BREAKS = {
    "hangs": "import time\n\nwhile True:\n    time.sleep(0.05)\n",
    "prints": 'import time\n\nwhile True:\n    print("x" * 10**6)\n    time.sleep(0.05)\n',
    "kills": "import os\n\nos.kill(os.getppid(), 9)\n",
    "fills memory": "import torch\n\nkept = torch.ones(2**40)\n",
}


def hand_in(folder: Path, learner: str, ring: str) -> Path:
    (folder / learner / "mine").mkdir(parents=True)
    (folder / learner / "mine" / "ring.py").write_text(ring)
    return folder / learner


def test_a_class_with_all_kinds_of_submissions(tmp_path: Path) -> None:
    for learner, text in {
        "anna": RING,
        "ben": "def all_reduce(:\n",
        "dora": RING + DELETES,
        "emil": RING + FORKS,
    }.items():
        hand_in(tmp_path / "class", learner, text)
    (tmp_path / "class" / "cleo").mkdir()
    out, sheets = tmp_path / "grades.json", tmp_path / "sheets"
    asked = ["class", "--json", out, "--sheets", sheets, "--only", "ring", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "-m", "course.ask", *asked],
        cwd=tmp_path,
        env=os.environ | {"TQDM_DISABLE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("5 submissions are graded: " + str(out) + "\n")
    grades = json.loads(out.read_text())
    assert [*grades] == ["anna", "ben", "cleo", "dora", "emil"]
    results = {learner: entry["tasks"]["project: ring"] for learner, entry in grades.items()}
    assert results["anna"]["status"] == "right", results["anna"]
    assert grades["anna"]["points"] == "1 of 1 task"
    assert grades["anna"]["seed"] == "7"
    assert "COURSE_SEED=7" in (sheets / "anna.md").read_text()
    assert results["ben"]["text"] == "Wrong. In ring.py, line 1: SyntaxError: invalid syntax."
    assert results["cleo"]["status"] == "not yet"
    assert results["emil"]["status"] == "right", "it does more than it should, and rightly"
    assert (sheets / "ben.md").read_text().startswith("# ben: 0 of 1 task\n\n- ✗ **project: ring**")
    commands = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
    assert ["sleep", "987654"] not in commands
    assert (tmp_path / "class" / "dora" / "mine" / "ring.py").exists(), "it had a copy to delete"


@pytest.mark.parametrize("how", BREAKS)
def test_what_breaks_its_grading_is_wrong_and_leaves_nothing(
    how: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # where it works
    folder = hand_in(temporary, "fritz", RING + BREAKS[how])
    results = grade_apart(folder, "ring", Limits(seconds=12, gib=8))
    (result,) = results.values()
    assert result["status"] == "wrong"
    folders = (each.info["cwd"] or "" for each in psutil.process_iter(["cwd"]))
    assert not any(each.startswith(str(temporary)) for each in folders)


def test_a_file_that_breaks_one_milestone_leaves_the_others_their_chance(tmp_path: Path) -> None:
    folder = hand_in(tmp_path, "gina", "import os\n\nos.kill(os.getppid(), 9)\n")
    results = grade_apart(folder, "ZeRO-", Limits())
    assert [result["status"] for result in results.values()] == ["not yet"] * 3


def test_a_lab_is_graded_by_its_cells(tmp_path: Path) -> None:
    lab = nbformat.read(ROOT / "notebooks" / "ring.ipynb", as_version=4)
    cells = {tag: cell for cell in lab.cells for tag in cell.metadata.get("tags", [])}
    right = "def my_bytes_sent(ranks, nbytes):\n    return 2 * (ranks - 1) * nbytes / ranks"
    cells["exercise-bytes"].source = f"{right}\n\n\n'Correct.'"
    nothing = "def my_ring(rank, ranks, chunks, exchange):\n    return"
    cells["exercise-ring"].source = f"{nothing}\n\n\n'Correct.'"
    cells["exercise-crossover"].source = "def my_crossover("
    (tmp_path / "hans").mkdir()
    nbformat.write(lab, tmp_path / "hans" / "ring.ipynb")
    results = grade_apart(tmp_path / "hans", "ring: ", Limits())
    found = {task.removeprefix("ring: "): result["status"] for task, result in results.items()}
    assert found == {"ring": "wrong", "bytes": "right", "crossover": "wrong"}
    assert "SyntaxError" in results["ring: crossover"]["text"]


def test_what_is_graded_is_not_graded_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def grade(folder: Path, *_: Any) -> dict[str, dict[str, Any]]:
        asked.append(folder.name)
        return {"project: ring": {"status": "right", "text": "Correct.", "seconds": 1}}

    monkeypatch.setattr(command, "grade_apart", grade)
    out = tmp_path / "grades.json"
    for learner in ("anna", "ben", "cleo"):
        hand_in(tmp_path / "class", learner, RING)

    def run() -> list[str]:
        asked.clear()
        command.grade_all(tmp_path / "class", out, "", 1, Limits(), lambda _: None)
        return sorted(asked)

    assert run() == ["anna", "ben", "cleo"]
    assert run() == []
    (tmp_path / "class" / "ben" / "mine" / "ring.py").write_text("")
    shutil.rmtree(tmp_path / "class" / "cleo")
    assert run() == ["ben"]
    assert [*json.loads(out.read_text())] == ["anna", "ben", "cleo"][:2]
