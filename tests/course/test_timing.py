"""What labs measure with: steps in turns, travels of units, memory, and emulated layers."""

import math
import time
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import minidist
from course.chapters.disagree.straggler import GONE, SENDS, WAITS, simulate
from course.chapters.fsdp import metered
from course.project.messages import Batches, recorded
from course.timing import travels, turns
from course.timing.turns import Round
from course.training.emulated import OnDevice, slow_down
from from_scratch.fsdp import FSDP
from minidist import Ours
from minidist.profiler.spans import Span
from minidist.profiler.timeline import mark
from minidist.schedule.algorithms import halving_doubling_all_reduce, ring_all_reduce
from minidist.schedule.cost import Link, price, switch


def run() -> dict[str, list[Round]]:
    def step() -> None:
        with mark("compute"):
            time.sleep(0.01)
        time.sleep(0.02)

    return turns.take_turns({"quick": lambda: None, "exposed": step}, 3)


def test_every_step_has_its_rounds_and_no_less_than_its_time() -> None:
    of_ranks = minidist.launch(run, 2)
    assert [len(rounds) for took in of_ranks for rounds in took.values()] == [3] * 4
    found = turns.fastest(of_ranks)
    assert list(found) == ["quick", "exposed"]
    exposed = found["exposed"]
    assert exposed.ms >= 30
    assert exposed.end - max(span.end for span in exposed.spans) >= 0.02


def test_a_round_starts_with_the_first_rank_and_ends_with_the_last_and_the_fastest_counts() -> None:
    def took(start: float, computed: float, end: float) -> Round:
        return Round(start, end, [Span(0, "compute", "compute", start, computed)])

    first = [took(0, 9, 9), took(1, 3, 4)]
    other = [took(0, 1, 2), took(0.5, 2, 4.5)]
    found = turns.fastest([{"a": first}, {"a": other}])["a"]
    assert (found.ms, max(span.end for span in found.spans)) == (4000, 3)


def test_an_emulated_layer_takes_its_time_before_its_gradients_are_there() -> None:
    layer, x = nn.Linear(2, 1), torch.ones(3, 2)
    device = OnDevice(nn.Sequential(layer, nn.Tanh()), 0.01)
    start, arrived = time.monotonic(), []
    layer.weight.register_post_accumulate_grad_hook(lambda _: arrived.append(time.monotonic()))
    output = device(x)
    forward = time.monotonic()
    output.atanh().sum().backward()
    assert torch.equal(output, layer(x).tanh())
    assert forward - start >= 0.01, "one of the two layers has parameters"
    assert arrived[0] - start >= 0.03
    assert layer.weight.grad is not None
    assert torch.allclose(layer.weight.grad, torch.full((1, 2), 3.0))


def test_a_slowed_layer_waits_in_forward_and_before_its_gradients_are_there() -> None:
    net, x, arrived = nn.Sequential(nn.Linear(2, 1)), torch.ones(3, 2), []
    slow_down(net, 0.01)
    net[0].weight.register_post_accumulate_grad_hook(lambda _: arrived.append(time.monotonic()))
    start = time.monotonic()
    output = net(x)
    forward = time.monotonic()
    output.sum().backward()
    assert forward - start >= 0.01
    assert arrived[0] - forward >= 0.02
    assert torch.allclose(net[0].weight.grad, torch.full((1, 2), 3.0))


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


# ---- ranks that wait ----

RING = ring_all_reduce(4)


def test_ranks_that_start_together_take_what_the_schedule_costs() -> None:
    for ranks, schedule in product((2, 3, 4, 7), (ring_all_reduce, halving_doubling_all_reduce)):
        whole = schedule(ranks)
        done = simulate(whole, [5.0] * ranks, 1.0)
        steps = price(whole, switch(Link(1.0, 0.0)))(0)
        assert max(own[-1].end for own in done) == 5 + steps
    assert not any(each.kind == WAITS for own in done for each in own if ranks == 4)


def test_a_late_rank_makes_all_late_and_waits_for_none() -> None:
    done = simulate(RING, [0, 0, 30, 0], 1.0)
    assert {own[-1].end for own in done} == {36}
    awaits = [[(each.about, each.start) for each in own if each.kind == WAITS] for own in done]
    assert awaits == [[(3, 1)], [(2, 1)], [], [(2, 1)]]
    for own in done:
        for one, after in pairwise(own):
            assert one.end <= after.start


def test_a_dead_rank_stops_its_neighbors_and_they_theirs() -> None:
    done = simulate(ring_all_reduce(6), [0.0] * 6, 1.0, dies=(2, 3))
    gone = done[2].pop()
    assert (gone.kind, gone.start, gone.end) == (GONE, 3, math.inf)
    last = [own[-1] for own in done]
    assert [(each.kind, each.about, each.start) for each in last] == [
        (WAITS, 1, 5), (WAITS, 2, 4), (SENDS, 2, 2), (WAITS, 2, 4), (WAITS, 3, 5), (WAITS, 4, 5)
    ]  # fmt: skip
    assert [each.end for each in last] == [math.inf] * 2 + [3] + [math.inf] * 3


ALPHA, BETA = 0.01, 0.005  # of the emulated link: seconds per message, and per byte


def over_a_link() -> tuple[list[float], list[float], Batches]:
    """Of two messages from rank 0 to rank 1: what they carry, when each is there, what is noted."""
    tensors = [torch.ones(1, dtype=torch.int8), torch.full((2,), 2, dtype=torch.int8)]
    dist.barrier()
    moments = [time.monotonic()]
    with recorded(Link(ALPHA, BETA)) as batches:
        post = dist.irecv if dist.get_rank() else dist.isend
        works = [post(tensor, 1 - dist.get_rank()) for tensor in tensors]
        for work in works:
            work.wait()
            moments.append(time.monotonic())
    assert all(work.is_completed() for work in works)
    return [tensor.sum().item() for tensor in tensors], moments, batches


def test_messages_follow_one_another_on_an_emulated_link() -> None:
    (sent, leave, sends), (received, arrive, receives) = minidist.launch(over_a_link, 2)
    assert received == sent == [1, 4]
    for moments in (leave, arrive):
        assert moments[1] - leave[0] >= ALPHA + BETA
        assert moments[2] - leave[0] >= 2 * ALPHA + 3 * BETA
    for batches, ends in ((sends, (True, 1)), (receives, (False, 0))):
        assert [[each[:3] for each in batch] for batch in batches] == [[(*ends, 1)], [(*ends, 2)]]
        assert all("test_timing.py, line" in each.where for batch in batches for each in batch)
