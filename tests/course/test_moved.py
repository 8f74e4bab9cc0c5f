"""Former names of modules, which copies of labs in `work/` may still have."""

import runpy
import signal
import sys
from importlib import import_module

import pytest

from course.moved import MOVED, Moved

LAB = """
from course.capstone.task import RANKS
from course.failures.show import symptom
from course.graders import map_reduce, ring as grade
from course.graders.map_reduce import words
from course.hosts import where_am_i
from course.hosts.two_hosts import loopback
from course.sandbox.calls import tried
from course.training import curves, data
"""


def test_a_former_name_leads_to_the_file_as_it_is_now() -> None:
    names = {old.replace("\\", ""): new for old, new in MOVED.items() if "(" not in old}
    names["graders.ring"] = "chapters.ring.exercises"
    files = {
        old: [import_module(f"course.{name}").__file__ for name in (old, new)]
        for old, new in names.items()
    }
    lost = [old for old, (former, now) in files.items() if former != now]
    assert lost == []


def test_a_lab_of_the_last_release_imports_what_it_uses() -> None:
    names: dict[str, object] = {}
    exec(LAB, names)
    table = names["grade"].bytes_sent.table()  # type: ignore[attr-defined]
    assert "For {} ranks and {} bytes" in table.told


@pytest.mark.parametrize(
    ("old", "says"), [("grade", "Grade a class"), ("capstone", "mine.capstone")]
)
def test_a_command_of_the_last_release_runs(
    old: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [old, "--help", "and", "more"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"course.{old}", run_name="__main__", alter_sys=True)
    assert says in capsys.readouterr().out + str(end.value.code)


def test_what_has_not_moved_has_no_other_name() -> None:
    names = ("course.project.report", "course.training.data", "course.graderless", "os.path")
    assert [name for name in names if Moved().find_spec(name)] == []
