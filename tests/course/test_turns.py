"""Timing several models in turns, what is made of the ranks' times, and the emulated layer."""

import time

import pytest
import torch
from torch import nn

import minidist
from course import timing
from course.timing.turns import Times
from course.training.emulated import OnDevice


class Sleeper:
    """Computes and synchronizes for a while."""

    def __init__(self, computes: float, waits: float) -> None:
        self.module, self.computes, self.waits = nn.Linear(1, 1), computes, waits

    def synchronize(self) -> None:
        time.sleep(self.waits)


def run() -> dict[str, list[Times]]:
    models = {"quick": Sleeper(0, 0), "exposed": Sleeper(0.01, 0.02)}
    return timing.take_turns(models, lambda model: time.sleep(model.computes), 3)


def test_every_model_has_its_rounds_and_no_less_than_its_time(
    capfd: pytest.CaptureFixture[str],
) -> None:
    of_ranks = minidist.launch(run, 2)
    assert "round 3 of 3" in capfd.readouterr().out
    assert [len(times) for took in of_ranks for times in took.values()] == [3] * 4
    found = timing.best(of_ranks)
    assert list(found) == ["quick", "exposed"]
    assert found["exposed"].took >= 30
    assert found["exposed"].exposed >= 20


def test_a_step_starts_with_the_first_rank_and_ends_with_the_last_and_the_best_counts() -> None:
    first = [Times(0, 9, 9), Times(1, 3, 4)]
    other = [Times(0, 1, 2), Times(0.5, 2, 4.5)]
    assert timing.best([{"a": first}, {"a": other}]) == {"a": (4000, 1500)}


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
