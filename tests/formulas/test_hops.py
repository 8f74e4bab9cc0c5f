"""Messages for which a pipeline waits: the closed form against the orders, replayed."""

from itertools import product

import pytest

from minidist.formulas.models import bubble, held, hops
from minidist.schedule.pipeline import (
    dual_pipe_v,
    interleaved,
    most_held,
    one_f_one_b,
    replay,
    zero_bubble,
)
from tests.support.cases import alike

SHORT = 0.01  # beside a forward of 1


@pytest.mark.claim("J4")
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


@pytest.mark.claim("J4")
def test_an_order_that_divides_backward_waits_for_the_ways_in_and_out_alone() -> None:
    takes = {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}
    for ranks, rounds in product((2, 3, 4, 8), (2, 3, 8)):
        order = zero_bubble(ranks, ranks * rounds)
        ends = [max(each.end for each in replay(order, takes, hop)) for hop in (0.0, SHORT)]
        exact = (ends[1] - ends[0]) / SHORT
        assert hops(ranks, ranks * rounds, 1, "zero_bubble") == pytest.approx(exact), ranks


def test_dualpipe_waits_as_often_as_1f1b() -> None:
    takes = {"F": 0.5, "I": 0.5, "W": 0.5, "B": 1.0, "F&B": 1.5}
    for ranks, rounds in product((2, 3, 4, 8), (2, 3, 8)):
        micro = ranks * rounds
        ends = [
            max(each.end for each in replay(dual_pipe_v(ranks, micro), takes, hop))
            for hop in (0.0, SHORT)
        ]
        exact = (ends[1] - ends[0]) / SHORT
        assert hops(ranks, micro, 1, "dualpipe") == pytest.approx(exact), ranks
        waits = ends[0] - 3 * micro  # each micro-batch takes 3 of a rank
        assert bubble(ranks, micro, 1, "dualpipe") == pytest.approx(waits / (3 * micro))
        most = max(most_held(dual_pipe_v(ranks, micro))) / 2
        assert held(ranks, micro, 1, "dualpipe") == most
