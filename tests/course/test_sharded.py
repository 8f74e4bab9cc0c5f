"""Tables of the chapters on FSDP: published runs, and what fits beside them."""

import pytest

from course.pages.published import published
from course.pages.sharded import ddp_beside_fsdp, what_fits
from minidist.planner.hardware import H100
from minidist.planner.jobs import SMALL


def test_the_same_models_under_ddp_and_fsdp() -> None:
    rows = ddp_beside_fsdp(published("ddp_fsdp_zero"))
    assert [row[0] for row in rows] == [23, 168, 731, 2603]
    assert rows[0][1:] == [32, 48, pytest.approx(0.55, abs=0.01), pytest.approx(0.12, abs=0.01)]
    assert rows[-1][1:] == ["", 279, "", pytest.approx(6.22, abs=0.01)]


@pytest.mark.claim("E7")
def test_fsdp_has_room_where_ddp_has_none() -> None:
    found = what_fits(SMALL, H100, 64)
    assert [*found] == [("ddp", True), ("fsdp", True), ("ddp", False), ("fsdp", False)]
    for recompute in (True, False):
        assert found["fsdp", recompute][0] > found["ddp", recompute][0]
    assert found["fsdp", True][0] > found["fsdp", False][0] > 0
    assert all((speed > 0) == (most > 0) for most, speed in found.values())
    again, kept = found["ddp", True], found["fsdp", False]
    assert again[0] > 0 == found["ddp", False][0], "DDP fits, and only if it recomputes"
    assert found["fsdp", True][1] == pytest.approx(again[1], rel=0.05), "then they are level"
    assert kept[1] > 1.25 * again[1], "without the extra forward FSDP is faster"
