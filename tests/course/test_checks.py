"""The last milestone: a test that catches five planted faults, and tests that catch fewer."""

from pathlib import Path

import pytest

from course.project import mutation, report
from course.project.faults import FAULTS
from course.project.trainer import WAYS
from course.submissions.tasks import all_tasks
from tests.course.verdicts import says
from tests.support.ledger import WRONG as LEDGERS
from tests.support.ledger import Row, changed, sections
from tools.work import ROOT

REFERENCE = (LEDGERS / "checks.py").read_text()
MISSES, WRONG = sections("checks").values()


def hand_in(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").touch()
    (folder / "mine" / "checks.py").write_text(text)
    monkeypatch.syspath_prepend(folder)


def test_the_reference_passes_what_is_right_and_catches_every_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path, REFERENCE, monkeypatch)
    verdict, scores, last = report.lines("mine", "checks")
    assert verdict.startswith("checks: Correct. It passes DDP, ZeRO, FSDP on 2 and 3 ranks, and ")
    assert verdict.endswith("every planted fault: DDP 5 of 5, ZeRO 5 of 5, FSDP 5 of 5.")
    *rows, total = scores.strip().splitlines()[2:]
    assert [row.split(":")[0] for row in rows] == [f"| {fault}" for fault in FAULTS]
    assert total == "|  | 5 of 5 | 5 of 5 | 5 of 5 |"
    assert last.startswith("1 of 1. All that was graded is right.")


@pytest.mark.parametrize("row", MISSES, ids=[row.kind for row in MISSES])
def test_a_test_that_looks_at_less_catches_less(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = {fault for fault in FAULTS if fault in row.diagnosis}
    monkeypatch.setattr(mutation, "RIGHT_RANKS", (3,))
    monkeypatch.setattr(mutation, "WAYS", {"DDP": WAYS["DDP"]})
    hand_in(tmp_path, changed(REFERENCE, row.change), monkeypatch)
    verdict = report.grade("checks")
    caught = mutation.boards.get("mine", {})
    assert {fault for fault, way in caught if not caught[fault, way]} == missed, verdict
    assert verdict.status == "wrong"
    if len(missed) < len(FAULTS):
        assert f"catches DDP {5 - len(missed)} of 5." in verdict.text
        assert all(f"Missed under DDP: {fault}. {FAULTS[fault].hint}" in verdict.text
                   for fault in missed)  # fmt: skip


@pytest.mark.parametrize("row", WRONG, ids=[row.kind for row in WRONG])
def test_a_wrong_test_is_told_so(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "TIMEOUT", 4 if row.kind == "hangs" else mutation.TIMEOUT)
    if "on none" in row.diagnosis:  # they pass every way, so one will do
        monkeypatch.setattr(mutation, "WAYS", {"DDP": WAYS["DDP"]})
    hand_in(tmp_path, changed(REFERENCE, row.change), monkeypatch)
    says(row.diagnosis, report.grade("checks"))


def test_the_stub_is_no_mistake_yet_and_a_class_has_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path, (ROOT / "lib/course/project/stub.py").read_text(), monkeypatch)
    verdict, last = report.lines("mine", "checks")
    assert verdict.startswith("checks: Not yet. In mine/checks.py, line ")
    assert "mine/checks.py write check; then run `make grade ONLY=checks` again" in last
    assert "project: checks" in all_tasks()
