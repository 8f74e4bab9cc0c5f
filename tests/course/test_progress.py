"""Who waits for a cell sees how far it is; the book does not show it."""

import pytest

import minidist
from course.timing import progress as timing
from course.timing.progress import progress


def on_a_rank() -> int:
    timing.PATIENCE = 0.0
    return sum(progress((1, 2, 3), "steps"))


def test_after_some_seconds_a_line_says_how_many_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert list(progress("abc", "letters")) == ["a", "b", "c"]
    assert capsys.readouterr().out == "", "it was quick"
    monkeypatch.setattr(timing, "PATIENCE", 0.0)
    assert list(progress("ab", "letters")) == ["a", "b"]
    assert capsys.readouterr().out.endswith("letters: 1 of 2 done\n")


def test_of_several_ranks_one_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    assert minidist.launch(on_a_rank, 2) == [6, 6]
    said = capsys.readouterr().out
    assert said.endswith("[rank 0] steps: 2 of 3 done\n")
    assert "[rank 1]" not in said


def test_nothing_is_said_where_bars_are_switched_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert minidist.launch(on_a_rank, 2) == [6, 6]
    assert capsys.readouterr().out == ""
