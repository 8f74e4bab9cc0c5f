"""Pictures of the chapter on ranks that disagree: what is drawn is what the data say."""

import matplotlib.pyplot as plt

from course import figures
from minidist.diagnose.verdict import Call, Rank
from tests.support.figures import texts


def test_the_three_kinds_end_in_an_error_in_a_wait_or_not_at_all() -> None:
    loud, silent, drift = figures.disagreements(ranks=3, steps=5).axes
    assert texts(loud).count("error") == 2
    assert "✕ dies" in texts(loud)
    assert texts(silent).count("Σ waits …") == 2
    assert [each for each in texts(drift) if "'" in each] == ["3'", "4'", "5'"]
    assert texts(drift).count("5") == 2


def rank(number: int, *calls: tuple[str, str]) -> Rank:
    made = [
        Call(state, n + 1, name, "float32 (4,)", "0", n + 1, float(n), [0, 1])
        for n, (name, state) in enumerate(calls)
    ]
    return Rank(number, 1, "running", "", 0.0, made, [])


def test_the_first_row_in_which_ranks_differ_has_a_frame() -> None:
    done = ("all_reduce", "left")
    ranks = [rank(0, done, done, ("barrier", "entered")), rank(1, done, done)]
    (axes,) = figures.last_calls(ranks, rows=2).axes
    assert texts(axes) == ["all_reduce", "(4,) done"] * 2 + ["barrier", "(4,) waits"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["#2", "#3"]
    frames = [patch for patch in axes.patches if patch.get_linewidth() > 2]
    assert [frame.get_y() for frame in frames] == [1]  # type: ignore[attr-defined]
    plt.close("all")
    (axes,) = figures.last_calls([rank(0, done), rank(1, done)]).axes
    assert [patch for patch in axes.patches if patch.get_linewidth() > 2] == []


def test_a_batch_that_does_not_fit_is_marked() -> None:
    first, second = figures.batch_memory({"a": [[1, 2], [9, 1]], "b": [[5], [6]]}, room=10).axes
    assert texts(first) == ["out of memory"]
    assert texts(second) == []
