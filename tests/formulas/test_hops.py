"""Messages for which a pipeline waits: the closed form against the orders, replayed."""

from itertools import product

import pytest

from minidist.formulas.models import hops
from minidist.schedule.pipeline import interleaved, one_f_one_b, replay, zero_bubble
from tests.support.cases import alike

SHORT = 0.01  # beside a forward of 1


def test_a_step_waits_for_as_many_messages_as_its_order_replayed() -> None:
    found, right = {}, {}
    for ranks, rounds, stages in product((2, 3, 4, 8), (1, 2, 3, 8), (1, 2, 4)):
        micro = ranks * rounds
        order = interleaved(ranks, micro, stages) if stages > 1 else one_f_one_b(ranks, micro)
        takes = {"F": 1 / stages, "B": 2 / stages}
        ends = [max(each.end for each in replay(order, takes, hop)) for hop in (0.0, SHORT)]
        found[ranks, micro, stages] = hops(ranks, micro, stages)
        right[ranks, micro, stages] = pytest.approx((ends[1] - ends[0]) / SHORT)
    alike(found, right)


def test_an_order_that_divides_backward_waits_for_the_ways_in_and_out_alone() -> None:
    takes = {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}
    for ranks, rounds in product((2, 3, 4, 8), (2, 3, 8)):
        order = zero_bubble(ranks, ranks * rounds)
        ends = [max(each.end for each in replay(order, takes, hop)) for hop in (0.0, SHORT)]
        exact = (ends[1] - ends[0]) / SHORT
        assert hops(ranks, ranks * rounds, 1, "zero_bubble") == pytest.approx(exact), ranks
