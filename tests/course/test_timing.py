"""The stopwatch of the labs."""

import pytest

from course.timing import all_reduces


def test_every_algorithm_is_timed_at_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    took = all_reduces(["ring", "tree"], [4096, 8192], ranks=2, runs=1)
    assert list(took) == [("ring", 4096), ("tree", 4096), ("ring", 8192), ("tree", 8192)]
    assert all(seconds > 0 for seconds in took.values())
    assert "8 KiB: 1 runs of ring, tree" in capsys.readouterr().out
