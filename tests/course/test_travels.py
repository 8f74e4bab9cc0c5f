"""What the lab on FSDP measures with: steps in turns, memory, and the travels of units."""

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import minidist
from course.timing import travels, turns
from course.timing.turns import Round
from course.training import metered
from from_scratch.fsdp import FSDP
from minidist import Ours
from minidist.profiler.spans import Span
from minidist.profiler.timeline import mark

BAR = Span(0, "compute", "backward", 1.0, 5.0)
OTHER = Span(1, "compute", "backward", 0.0, 9.0)
SENT = Span(0, "communication", "all-gather 1", 0.0, 2.5)


def wait(start: float, end: float) -> Span:
    return Span(0, "waiting", "waiting", start, end)


def test_bars_are_cut_where_their_rank_waits() -> None:
    waits = [wait(0.5, 1.5), wait(2.0, 3.0), wait(4.5, 6.0)]
    found = travels.without_waits([BAR, SENT, *waits, OTHER])
    pieces = [s[-2:] for s in found if s.rank == 0 and s.lane == "compute"]
    assert pieces == [(1.5, 2.0), (3.0, 4.5)]
    assert [s for s in found if s not in (OTHER, SENT) and s.name != "backward"] == []
    assert OTHER in found
    assert SENT in found


def test_exposed_is_what_is_waited_for_while_the_link_is_busy() -> None:
    spans = [BAR, SENT, wait(2.0, 3.0), wait(4.5, 6.0)]
    assert travels.exposed_ms(spans) == pytest.approx(500)
    assert travels.exposed_ms([*spans, OTHER]) == pytest.approx(250), "the mean of two ranks"


def test_rounds_stand_side_by_side_from_their_start() -> None:
    rounds = [Round(1.0, 5.0, [BAR, OTHER]), Round(0.5, 5.0, [BAR])]
    first, second = travels.side_by_side(rounds)
    assert (first.rank, first.start, first.end) == (0, 0.0, 4.0)
    assert (second.rank, second.start, second.end) == (1, 0.5, 4.5)


def recorded_steps(prefetch: bool) -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 1))
    model = travels.record(FSDP(net, [net[0], net[1]], Ours(), prefetch))

    def step() -> None:
        with mark("forward"):
            loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        model.synchronize()

    return turns.take_turns({"one": step, "nothing": partial(time.sleep, 0.01)}, rounds=2)


def test_units_report_when_they_travel_and_steps_take_turns() -> None:
    of_ranks = minidist.launch(recorded_steps, 2, True)
    best = turns.fastest(of_ranks)
    assert all(len(rounds) == 2 for took in of_ranks for rounds in took.values())
    assert best["nothing"].ms >= 10
    assert best["nothing"].spans == []
    spans = [span for span in best["one"].spans if span.rank == 1]
    sent = sorted(span.name for span in spans if span.lane == "communication")
    gathers = sorted(f"all-gather {n}" for n in (0, 1, 2) for _ in range(2))
    assert sent == [*gathers, *(f"reduce-scatter {n}" for n in (0, 1, 2))]
    assert any(span.lane == "waiting" for span in spans)


def test_the_fastest_round_is_that_of_all_ranks_together() -> None:
    ranks = [[Round(0.0, 1.0, [BAR]), Round(2.0, 5.0, [])], [Round(0.5, 4.0, []), Round(2, 4, [])]]
    best = turns.fastest([{"a": rounds} for rounds in ranks])
    assert best == {"a": Round(2.0, 5.0, [])}


def peaks() -> Any:
    def run(made: list[torch.Tensor]) -> int:
        made.append(torch.ones(1000))
        return len(made)

    return metered.curve_of(lambda: [torch.ones(500)], run, warm_up=2)


def test_memory_is_that_of_rank_0_without_the_rehearsal() -> None:
    curve, nothing = minidist.launch(peaks, 2)
    assert nothing is None
    assert curve.value == 4
    assert (curve.start, curve.end) == (4 * 2500, 4 * 3500)
