"""`make book` shows nothing stale, and what to do next; so do the tests when they end."""

import re
import subprocess
from pathlib import Path

import pytest

from tools import book

ROOT = book.ROOT
SOURCES = [
    "lib/a.py",
    "book/ring.md",
    "book/claims.json",
    "notebooks/ring.ipynb",
    "tests/test_a.py",
    "_config.yml",
    "requirements.txt",
    "README.md",
]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small course, with a renderer that leaves what the real one would."""
    for name in SOURCES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before")
    build = tmp_path / "_build"
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "BUILD", build)
    monkeypatch.setattr(book, "INDEX", build / "html" / "index.html")
    monkeypatch.setattr(book, "EXECUTED_WITH", build / "executed-with")
    monkeypatch.setattr(book, "RENDERED_FROM", build / "rendered-from")
    monkeypatch.setattr(book, "imports_this_checkout", lambda: True)
    monkeypatch.setattr(book, "run_all", lambda: 0)
    monkeypatch.setattr(book, "render", lambda: render(build))
    return tmp_path


def render(build: Path) -> int:
    for name in ("html/index.html", "html/old.html", ".doctrees/x", ".jupyter_cache/result"):
        (build / name).parent.mkdir(exist_ok=True)
        (build / name).touch()
    return 0


def left_for_the_renderer(
    course: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0
) -> set[str] | None:
    """What of the last build is still there when the next one starts; None: none was started."""
    left: list[set[str]] = []

    def look() -> int:
        found = {path.name for path in (course / "_build").iterdir()}
        left.append(found & {"html", ".doctrees", ".jupyter_cache"})
        return render(course / "_build")

    monkeypatch.setattr(book, "render", look)
    assert book.main() == status
    return left[0] if left else None


def test_a_build_ends_with_what_to_do_next(
    course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book.main()
    *_, next_step, where = capsys.readouterr().out.splitlines()
    assert next_step.endswith("Next: read it, and run its labs with `make lab`.")
    assert where == f"Open {(course / '_build' / 'html' / 'index.html').as_uri()}"
    (course / "lib" / "a.py").write_text("after")
    monkeypatch.setattr(book, "run_all", lambda: 1)
    book.main()
    said = capsys.readouterr()
    assert "run `make book` again" in said.err
    assert "make lab" not in said.out


@pytest.mark.parametrize(
    ("status", "next_step"),
    [(0, "All checks passed. Next: "), (1, "Next: .* -m pytest --last-failed$")],
)
def test_checks_end_with_what_to_do_next(status: int, next_step: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in "-m pytest"*) exit {status};; esac\n')
    python.chmod(0o755)
    pretended = f"VENV={tmp_path}", f"READY={python}"
    done = subprocess.run(
        ["make", "test", "-o", python, *pretended], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert bool(done.returncode) == bool(status)
    assert re.search(next_step, done.stdout, re.MULTILINE), done.stdout


def test_nothing_changed_nothing_done(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert book.main() == 0
    assert book.up_to_date()
    assert left_for_the_renderer(course, monkeypatch) is None


def test_changed_text_keeps_only_results_and_changed_input_nothing(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {}
    for name in SOURCES:
        book.main()
        (course / name).write_text("after")
        assert not book.up_to_date()
        kept[name] = left_for_the_renderer(course, monkeypatch)
    text = {"book/ring.md", "tests/test_a.py", "README.md"}
    assert kept == {name: {".jupyter_cache"} if name in text else set() for name in SOURCES}


def test_new_and_removed_input_keeps_nothing(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in (Path.touch, Path.unlink):
        book.main()
        change(course / "lib" / "new.py")
        assert left_for_the_renderer(course, monkeypatch) == set()


def test_failed_build_is_built_again(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book.main()
    (course / "book" / "ring.md").write_text("wrong")
    monkeypatch.setattr(book, "render", lambda: render(course / "_build") or 1)
    assert book.main() == 1
    assert not book.up_to_date()
    (course / "book" / "ring.md").write_text("before")
    assert not book.up_to_date(), "what is there was made from the wrong text"


def test_a_cell_that_raises_stops_the_build(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "run_all", lambda: 1)
    assert left_for_the_renderer(course, monkeypatch, status=1) is None
    assert not book.up_to_date()


def test_an_edit_during_a_build_is_seen_by_the_next_even_if_it_is_taken_back(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> int:
        (course / "lib" / "a.py").write_text("meanwhile")
        return render(course / "_build")

    for afterwards in ("meanwhile", "before"):
        monkeypatch.setattr(book, "render", slow)
        assert book.main() == 0
        (course / "lib" / "a.py").write_text(afterwards)
        assert not book.up_to_date()
        assert left_for_the_renderer(course, monkeypatch) == set()


def test_what_tools_leave_beside_the_sources_is_no_change(course: Path) -> None:
    book.main()
    for name in ("notebooks/.ruff_cache/x", "lib/__pycache__/a.pyc", "lib/a.egg-info/PKG-INFO"):
        (course / name).parent.mkdir()
        (course / name).touch()
        assert book.up_to_date(), name
