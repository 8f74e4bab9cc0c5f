"""Timing several models in turns, what is made of the ranks' times, and the emulated layer."""

import time

import torch
from torch import nn

import minidist
from course.timing import turns
from course.timing.turns import Round
from course.training.emulated import OnDevice, slow_down
from minidist.profiler.spans import Span
from minidist.profiler.timeline import mark


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
    assert found["exposed"].ms >= 30
    assert found["exposed"].after("compute") >= 20


def test_a_round_starts_with_the_first_rank_and_ends_with_the_last_and_the_fastest_counts() -> None:
    def took(start: float, computed: float, end: float) -> Round:
        return Round(start, end, [Span(0, "compute", "compute", start, computed)])

    first = [took(0, 9, 9), took(1, 3, 4)]
    other = [took(0, 1, 2), took(0.5, 2, 4.5)]
    found = turns.fastest([{"a": first}, {"a": other}])["a"]
    assert (found.ms, found.after("compute")) == (4000, 1500)


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
