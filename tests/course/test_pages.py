"""Pages show what was recorded, as it was recorded."""

import pytest

from course.pages.recorded import by_size, recorded


def test_a_record_says_where_and_when(capsys: pytest.CaptureFixture[str]) -> None:
    found = recorded("ring")
    said = capsys.readouterr().out
    assert found["machine"] in said
    assert found["date"] in said
    assert found["rows"]


def test_a_table_has_a_row_for_each_size_in_order() -> None:
    shown = by_size(
        {("a", 1 << 20): 0.5, ("b", 1 << 20): 0.25, ("a", 4096): 1.5, ("b", 4096): 2.5}, "ab"
    )
    *_, small, large = shown.data.splitlines()
    assert small == "| 4 KiB | 1.5 | 2.50 |"
    assert large == "| 1 MiB | 0.5 | 0.25 |"
