"""What links take of messages that no ring carries."""

from dataclasses import replace

import pytest

from minidist.formulas.inputs import TrainingStep
from minidist.formulas.links import message, straight
from minidist.memory.state import AUTOCAST, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import SMALL


def test_straight_messages_leave_a_node_by_a_card_for_each_rank_of_the_others() -> None:
    """Of 16 parts, 8 stay in the node; alone it sends 7 of 8 over NVLink."""
    two = TrainingStep(SMALL, H100, bytes_each(AUTOCAST), local=8, nodes=2)
    assert straight(two, 16e9, 16) == pytest.approx(8 * 1e9 / 50e9)
    assert straight(two, 16e9, 1) == pytest.approx(8 * 16e9 / 50e9)
    assert straight(replace(two, nodes=1), 8e9, 8) == pytest.approx(7 * 1e9 / 450e9)


def test_a_message_has_14_microseconds_of_latency() -> None:
    assert message(H100, 50e3) == pytest.approx(14e-6 + 1e-6)
