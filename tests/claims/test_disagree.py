"""The claims of the chapter on ranks that disagree, each shown by a run."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import minidist
from course.training import models
from minidist.comm.replicas import check_replicas
from minidist.errors import ReplicaError
from minidist.memory.meter import measured


@pytest.mark.claim("F3")
def test_a_rank_waits_for_one_that_skips_a_collective_until_the_timeout() -> None:
    def run() -> str:
        dist.barrier()  # or one may be late to make the group
        group = dist.new_group(timeout=timedelta(seconds=4))
        if dist.get_rank() == 1:
            return "skipped"
        with pytest.raises(RuntimeError, match="Timed out waiting 4000ms") as caught:
            dist.all_reduce(torch.ones(4), group=group)
        return str(caught.value)

    waited, skipped = minidist.launch(run, 2, device="cpu")
    assert skipped == "skipped"
    assert "rank 1" not in waited, "it does not say who was missing"


@pytest.mark.claim("F4")
def test_padding_to_the_longest_sample_makes_one_rank_s_activations_the_largest() -> None:
    net = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1))

    def activations(lengths: list[int]) -> int:
        padded = torch.zeros(len(lengths), max(lengths), 32)
        curve = measured(lambda: net(padded).sum().backward())
        return curve.peak - curve.start

    usual, unlucky = activations([100, 90, 110, 100]), activations([100, 90, 800, 100])
    assert unlucky > 6 * usual
    assert activations([800]) < 2.2 * usual, "as many tokens as 8 samples of 100 have"
    assert activations([100] * 8) < 2.2 * usual


# ---- F5 ----

STEPS, CHANGE = 20, 5


def train(how: str) -> tuple[torch.Tensor, str]:
    """The weights after each step, and what the first failing check says."""
    rank = dist.get_rank()
    torch.manual_seed(rank if "seeds" in how else 0)
    net = models.mlp((8, 16, 4))
    model: Any = net if "by hand" in how else nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    weights, said = [], ""
    for step in range(STEPS):
        if step == CHANGE and rank == 1 and how == "change":
            nn.utils.vector_to_parameters(flat(net) + 0.01 * one_hot(net), net.parameters())
        if step == CHANGE and rank == 1 and how == "leak":
            optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.zero_grad()
        samples = torch.randn(2, 6, 8)[rank]
        model(samples).square().mean().backward()
        if "by hand" in how:
            average_gradients(net)
        optimizer.step()
        weights.append(flat(net))
        try:
            check_replicas(net, step)
        except ReplicaError as error:
            said = said or str(error)
    return torch.stack(weights), said


def flat(net: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def one_hot(net: nn.Module) -> torch.Tensor:
    return nn.functional.one_hot(torch.tensor(0), len(flat(net)))


def average_gradients(net: nn.Module) -> None:
    for parameter in net.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def two_ranks(*hows: str) -> list[tuple[list[float], str]]:
    """For each way to train: how far apart the weights are after each step; the first complaint."""

    def run() -> list[tuple[torch.Tensor, str]]:
        return [train(how) for how in hows]

    found = []
    for (one, said), (other, also) in zip(*minidist.launch(run, 2, device="cpu"), strict=True):
        assert said == also, "both ranks are told the same"
        found.append(((one - other).abs().amax(1).tolist(), said))
    return found


@pytest.mark.claim("F5")
def test_wrong_seeds_make_replicas_differ_by_hand_and_not_under_ddp() -> None:
    (ddp, fine), (_, by_hand), (same, also_fine) = two_ranks("seeds", "seeds, by hand", "by hand")
    assert (fine, also_fine) == ("", "")
    assert max(ddp) == max(same) == 0
    assert by_hand == "at step 0, parameter '1.weight' on rank 1 is not as on rank 0"


@pytest.mark.claim("C9", "F5")
def test_a_change_stays_and_a_leak_grows_and_the_checksum_finds_the_first_step() -> None:
    for apart, said in (found := two_ranks("change", "leak")):
        assert said == f"at step {CHANGE}, parameter '1.weight' on rank 1 is not as on rank 0"
        assert max(apart[:CHANGE]) == 0
    (change, _), (leak, _) = found
    assert all(each == pytest.approx(0.01, rel=1e-2) for each in change[CHANGE:])
    assert leak[-1] > 2 * leak[CHANGE + 4] > 4 * leak[CHANGE]
