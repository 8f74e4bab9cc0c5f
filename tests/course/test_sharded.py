"""Tables of the chapters on FSDP: published runs, and what fits beside them."""

import pytest

from course.pages.published import published
from course.pages.sharded import BLOCK, ROOT, ddp_beside_fsdp, unit_sizes, what_fits
from minidist.planner.hardware import H100
from minidist.planner.jobs import SMALL


def test_messages_of_fsdp_are_units_to_the_parameter() -> None:
    rows = unit_sizes(published("fsdp_waiting"))
    calls = {(collective, which): calls for collective, *_, which, calls in rows}
    assert calls == {
        ("all-gather", BLOCK): 2 * 80 - 1,  # the last block is kept for backward
        ("reduce-scatter", BLOCK): 80,
        ("all-gather", ROOT): 1,  # and so is the root
        ("reduce-scatter", ROOT): 1,
    }
    assert [row[3] for row in rows] == [855_654_400] * 2 + [2_101_354_496] * 2


def test_the_same_models_under_ddp_and_fsdp() -> None:
    rows = ddp_beside_fsdp(published("ddp_fsdp_zero"))
    assert [row[0] for row in rows] == [23, 168, 731, 2603]
    assert rows[0][1:] == [32, 48, pytest.approx(0.55, abs=0.01), pytest.approx(0.12, abs=0.01)]
    assert rows[-1][1:] == ["", 279, "", pytest.approx(6.22, abs=0.01)]


def test_fsdp_has_room_where_ddp_has_none() -> None:
    found = what_fits(SMALL, H100, 64)
    assert [*found] == [("ddp", True), ("fsdp", True), ("ddp", False), ("fsdp", False)]
    for recompute in (True, False):
        assert found["fsdp", recompute][0] > found["ddp", recompute][0]
    assert found["fsdp", True][0] > found["fsdp", False][0] > 0
    assert all((speed > 0) == (most > 0) for most, speed in found.values())
