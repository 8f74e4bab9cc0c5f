"""A class is graded: what a submission does costs its own points, and nobody else's."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from course.puzzles.catalog import PUZZLES
from course.submissions import apart, command, run, sheets
from course.submissions.apart import Apart, Limits
from course.submissions.handed_in import Submission
from course.submissions.run import Results, grade_all
from tests.support import submissions as handed
from tests.support.submissions import RING, hand_in, lab
from tools.work import ROOT

TASKS = ("project: ring", "ring: ring", "ring: bytes", "ring: crossover")
HELPED = """
import random

import helper


def my_bytes_sent(ranks, nbytes):
    return helper.twice(ranks - 1) * nbytes / ranks


grade.bytes_sent(my_bytes_sent)
"""


def start(folder: Path, *asked: object, path: str = "") -> subprocess.Popen[str]:
    """The command, on the folder `class`."""
    return subprocess.Popen(
        [sys.executable, "-m", "course.ask", "class", "--require", *TASKS, *map(str, asked)],
        cwd=folder,
        env=os.environ | {"TQDM_DISABLE": "1", "PYTHONPATH": f"{ROOT / 'lib'}:{path}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a class has been graded, nasty submissions among them."""
    folder = tmp_path_factory.mktemp("grade")
    every = folder / "class"
    original = str(every / "dora")
    hand_in(every / "dora", ring=RING + handed.DELETES.format(original=original))
    work = every / "emil ä b" / "ring" / "work"
    hand_in(work, ring=RING + handed.FORKS)
    nbformat.write(lab("ring", bytes=HELPED), work / "ring (1).ipynb")
    talks = handed.TALKS.replace("TASK", "'ring: crossover'")
    nasty = lab("ring", ring=handed.REPLACES, bytes=handed.RECODES, crossover=talks)
    hand_in(every / "fritz" / "lab_1" / "notebooks", ring=nasty)
    (work / "helper.py").write_text("def twice(number):\n    return 2 * number\n")
    for name in ("random", "torch"):
        (work / f"{name}.py").write_text("raise SystemExit\n")
    (every / "cleo").mkdir()
    teachers = hand_in(folder / "work", ring=RING)  # which is nobody's solution
    (teachers / "mine" / "__init__.py").touch()
    running = start(folder, "--seed", 7, "--at-once", 3, "--due", "2001-01-01", path=str(teachers))
    said, errors = running.communicate()
    assert (running.returncode, errors) == (0, "")
    assert said.endswith("4 submissions are graded: grades\n")
    yield folder
    commands = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
    assert ["sleep", "987654"] not in commands


STATUS = {  # of the tasks, in order
    "cleo": ["not yet"] * 4,
    "dora": ["wrong", "not yet", "not yet", "not yet"],
    "emil ä b": ["right", "not yet", "right", "not yet"],
    "fritz": ["not yet", "wrong", "wrong", "wrong"],
}
SAID = {
    ("cleo", "project: ring"): "Not yet. There is no mine/ring.py.",
    ("cleo", "ring: bytes"): "Not yet. There is no copy of the lab ring.ipynb.",
    ("fritz", "ring: ring"): "Your file replaces course.ask.verdict.Grader.__call__",
    ("fritz", "ring: bytes"): "Your file replaces the code of course.",
}


@pytest.mark.parametrize("learner", STATUS)
def test_what_a_submission_does_costs_its_own_points(learner: str, graded: Path) -> None:
    entry = json.loads((graded / "grades" / "grades.json").read_text())[learner]
    found = [entry["tasks"][task]["status"] for task in TASKS]
    assert found == STATUS[learner], entry["tasks"]
    for (who, task), text in SAID.items():
        assert who != learner or text in entry["tasks"][task]["text"]
    sheet = (graded / "grades" / "sheets" / f"{learner}.md").read_text()
    assert sheet.startswith(f"# {learner}: {found.count('right')} of 4 points\n")
    assert "COURSE_SEED=7" in sheet
    assert ("its own files while project: ring was graded" in sheet) == (learner == "dora")
    assert ("Late by" in sheet) == (learner != "cleo")


def test_a_table_and_a_summary_are_written(graded: Path) -> None:
    table = (graded / "grades" / "grades.csv").read_text().splitlines()
    assert table[0] == f"learner,points,of,newest file,days late,{','.join(TASKS)}"
    assert table[3].startswith("emil ä b,2,4,20")
    assert table[3].endswith(",1,0,1,0")
    summary = (graded / "grades" / "summary.md").read_text()
    assert "| project: ring | 1 | 1 | 2 | 1×: " in summary
    assert "- ring.py: dora, emil ä b, the lesson (up to 100%)" in summary


def test_ctrl_c_ends_it_keeps_what_is_done_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "class" / "anna").mkdir(parents=True)
    begun = tmp_path / "begun"
    sleeps = f"import time\n\nopen({str(begun)!r}, 'w').close()\ntime.sleep(1000)\n"
    hand_in(tmp_path / "class" / "ben", ring=sleeps)
    running = start(tmp_path)
    while not begun.exists():
        assert running.poll() is None
        time.sleep(0.05)
    for _ in range(2):
        running.send_signal(signal.SIGINT)
    _, errors = running.communicate()
    assert errors == "Interrupted. What is graded is kept; the same command goes on.\n"
    assert running.returncode == 1
    grades = json.loads((tmp_path / "grades" / "grades.json").read_text())
    assert len(grades["anna"]["tasks"]) == 4
    assert "project: ring" not in grades["ben"]["tasks"]
    assert "begun" not in grades["ben"]
    assert "Not graded yet." in (tmp_path / "grades" / "sheets" / "ben.md").read_text()
    mapped = [each.info["environ"] or {} for each in psutil.process_iter(["environ"])]
    folders = [each.get("TMPDIR", "") for each in mapped]
    assert not any("submission-" in each and not Path(each).exists() for each in folders)


def test_a_process_that_says_nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "START", 0.0)
    late = Apart(Submission(), ["ring: ring"], Limits(seconds=0.01))
    while not late.done:
        run._heard({"anna": late})
    assert late.failed == "The process that grades it did not end within 0.01 s."
    assert late.results == {}


BREAKS = {
    "hangs": "import time\n\nwhile True:\n    time.sleep(0.05)\n",
    "prints": 'import time\n\nwhile True:\n    print("x" * 10**6)\n    time.sleep(0.05)\n',
    "kills": handed.KILLS,
    "fills memory": handed.HUNGRY,
}


def results_of(submission: Submission, tasks: list[str], limits: Limits) -> dict[str, Any]:
    grading = Apart(submission, tasks, limits)
    while not grading.done:
        run._heard({"fritz": grading})
    assert not grading.failed
    return grading.results


@pytest.mark.parametrize("how", BREAKS)
def test_what_breaks_its_grading_is_wrong_and_leaves_nothing(
    how: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # where it works
    submission = Submission({"ring.py": (RING + BREAKS[how]).encode()})
    (result,) = results_of(submission, ["project: ring"], Limits(seconds=12, gib=8)).values()
    assert result["status"] == "wrong"
    folders = (each.info["cwd"] or "" for each in psutil.process_iter(["cwd"]))
    assert not any(each.startswith(str(temporary)) for each in folders)


def test_a_file_that_breaks_one_milestone_leaves_the_others_their_chance() -> None:
    tasks = [f"project: ZeRO-{stage}" for stage in (1, 2, 3)]
    results = results_of(Submission({"ring.py": handed.KILLS.encode()}), tasks, Limits())
    assert [results[task]["status"] for task in tasks] == ["not yet"] * 3


def test_stars_are_judged_again_apart_and_earn_a_part_of_the_points() -> None:
    answers = {
        "broadcast": PUZZLES["broadcast"].solution,
        "all_gather": PUZZLES["broadcast"].solution,
        "deadlock": "import os\n" + PUZZLES["deadlock"].solution,
    }
    entry = {"tasks": results_of(Submission(puzzles=answers), ["puzzles"], Limits())}
    assert entry["tasks"]["puzzles"]["text"] == (
        "Not yet. 3 of 36 stars: broadcast 3. None for all_gather: There is no function all_gather "
        "any more. It has to keep its name. None for deadlock: it is not run here, since it has "
        "import of os in line 1."
    )
    assert sheets.of_all(entry, {"puzzles": 6.0, "ring: ring": 1.0}) == "0.5 of 7 points"
    full = {name: each.solution for name, each in PUZZLES.items()}
    (result,) = results_of(Submission(puzzles=full), ["puzzles"], Limits()).values()
    assert (result["status"], result["earned"]) == ("right", 1)


def test_the_table_has_days_late_for_a_spreadsheet_to_deduct() -> None:
    due = datetime(2027, 1, 31, 23, 59)
    late = {"anna": -5, "ben": 0, "cleo": 1, "dora": 24 * 3600, "emil": 24 * 3600 + 1}
    entries = {
        name: {"tasks": {"puzzles": {"status": "not yet", "earned": 1 / 3}}, "changed": at}
        for name, seconds in late.items()
        for at in [due.timestamp() + seconds]
    }
    head, *rows = sheets.as_csv(entries, {"puzzles": 1.0}, due).splitlines()
    assert head == "learner,points,of,newest file,days late,puzzles"
    assert [row.split(",")[4] for row in rows] == ["0", "0", "1", "1", "2"]
    assert {row.split(",")[1] for row in rows} == {"0.33"}, "lateness costs nothing by itself"


class Fake:
    """A grading that has ended as soon as it has begun."""

    asked: list[str] = []  # noqa: RUF012
    results = {"project: ring": {"status": "right", "text": "Correct.", "seconds": 1}}  # noqa: RUF012
    notes, failed, done, patience = ["a note"], "", True, 0.0

    def __init__(self, submission: Submission, tasks: list[str], limits: Limits) -> None:
        self.limits = limits
        self.asked.append(submission.mine["ring.py"].decode())

    def fileno(self) -> int:
        return 0

    def hear(self) -> None:
        """Nothing."""


def grade(results: Results, **rings: str) -> list[str]:
    """Whose rings were graded now."""
    Fake.asked.clear()
    all_of = {name: Submission({"ring.py": text.encode()}) for name, text in rings.items()}
    grade_all(all_of, ["project: ring"], results, 2, Limits(), "7", lambda *_: None)
    return sorted(Fake.asked)


def test_what_is_graded_is_not_graded_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Apart", Fake)
    file = tmp_path / "grades.json"
    assert grade(Results(file), anna="a", ben="b", cleo="c") == ["a", "b", "c"]
    assert grade(Results(file), anna="a", ben="b", cleo="c") == []
    assert grade(Results(file), anna="a", ben="new") == ["new"]
    kept = json.loads(file.read_text())
    assert [*kept] == ["anna", "ben", "cleo"], "what was graded is kept, whatever became of it"
    assert kept["ben"]["notes"] == ["a note"]


SLOW = """
import os, time


def my_bytes_sent(ranks, nbytes):
    time.sleep(0 if float(os.environ["COURSE_PATIENCE"]) == 4 else 1000)
    return 2 * (ranks - 1) * nbytes / ranks


grade.bytes_sent(my_bytes_sent)
"""


def test_what_did_not_end_in_time_is_tried_again_last_alone_and_with_more_patience(
    tmp_path: Path,
) -> None:
    labs = {"anna": lab("ring", bytes=SLOW), "ben": handed.solved(ROOT / "notebooks/ring.ipynb")}
    folders = {name: hand_in(tmp_path / name, ring=each) for name, each in labs.items()}
    every = {name: command.submission([folder]) for name, folder in folders.items()}
    file, said = tmp_path / "grades.json", list[tuple[str, str]]()

    def say(learner: str, entry: dict[str, Any]) -> None:
        said.append((learner, entry["tasks"]["ring: bytes"]["text"]))

    grade_all(every, ["ring: bytes"], Results(file), 2, Limits(), "7", say)
    (_, first), (_, second), (last, text) = sorted(said[:2]) + said[2:]
    assert first.endswith("it does not come to an end.")
    assert second.startswith("Correct ")
    assert (last, text) == ("anna", second)
    assert Results(file).entries["anna"]["tasks"]["ring: bytes"]["status"] == "right"


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("Wrong. It has broken the process that graded it, which did not end within 180 s.", 2),
        ("Wrong. For 3 ranks it does not come to an end.", 2),
        ("Wrong. On 4 real processes ranks 0, 1 did not end within 15 s; rank 2 had returned", 2),
        ("Wrong. On 4 real processes rank 0 did not end, and nothing moves any more.", 1),
        ("Wrong. For 3 ranks it gives 7, expected 8.", 1),
    ],
)
def test_only_what_may_have_been_too_slow_is_tried_again_and_once(
    text: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Apart", Fake)
    result = {"status": "wrong", "text": text, "seconds": 1}
    monkeypatch.setattr(Fake, "results", {"project: ring": result})
    file = tmp_path / "grades.json"
    assert grade(Results(file), anna="a") == times * ["a"]
    assert grade(Results(file), anna="a") == []


def test_an_error_that_no_file_can_hold_costs_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Apart", Fake)
    odd = {"status": "wrong", "text": "Wrong. ValueError: \ud800", "seconds": 1}
    monkeypatch.setattr(Fake, "results", {"project: ring": odd})
    file = tmp_path / "grades.json"
    assert grade(Results(file), anna="a", ben="b") == ["a", "b"]
    page = tmp_path / "anna.md"
    sheets.write(
        page, sheets.sheet("anna", Results(file).entries["anna"], {"project: ring": 1}, None)
    )
    assert r"ValueError: \ud800" in page.read_text()


def test_a_submission_that_ends_the_run_each_time_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Apart", Fake)
    file = tmp_path / "grades.json"
    grade(Results(file), anna="a")
    entry = Results(file).entries["anna"]
    file.write_text(json.dumps({"anna": entry | {"tasks": {}, "begun": 2}}))
    assert grade(Results(file), anna="a", ben="b") == ["b"]
    text = json.loads(file.read_text())["anna"]["tasks"]["project: ring"]["text"]
    assert text.startswith("Wrong. It has ended the whole run 2 times")


def test_names_of_tasks_carry_their_points() -> None:
    weights = command.weighted(["pipelines", "pipelines: bubble=3"])
    assert weights == {
        "pipelines: one-f-one-b": 1,
        "pipelines: bubble": 3,
        "pipelines: zero-bubble": 1,
    }
    assert len(command.weighted([])) > 60
    assert command.weighted(["puzzles=36"]) == {"puzzles": 36}
    with pytest.raises(ValueError, match="no task is named 'rings'; there are project: ring, "):
        command.weighted(["rings"])
