"""Collectives: prices by hand, shapes, and wrong answers for the graders of the lab."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import minidist
from course.chapters.collectives import exercises as grade
from course.pages.price import ask
from minidist.schedule.algorithms import pairwise_all_to_all
from minidist.schedule.traffic import traffic
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("collectives")


def test_no_two_pictures_are_alike() -> None:
    shown = {(each.start, each.goal) for each in grade.pictures().values()}
    assert len(shown) == 6


def test_tokens_to_experts_go_through_each_rank_s_own_network_card() -> None:
    nbytes, blocks = 8192 * 4096 * 2, 64 * 64
    sent = traffic(pairwise_all_to_all(64), blocks, itemsize=1, local=8)
    out = sent.between_nodes / blocks  # of the tokens of a rank
    assert out == 56 / 64
    assert ask("all_to_all", "medium", gpus=64) == pytest.approx(out * nbytes / 50e9)
    assert ask("all_to_all", "medium", gpus=8) == pytest.approx(7 / 8 * nbytes / 450e9)


def test_calls_of_a_model_are_compared_with_its_own_compute() -> None:
    def share(what: str, job: str, strategy: str) -> float:
        how: Any = {"gpus": 64, "strategy": strategy}
        return ask(what, job, **how) / ask("compute", job, **how)

    assert share("all_reduce", "small", "ddp") == pytest.approx(0.117, abs=5e-4)
    assert share("all_gather", "medium", "fsdp") == pytest.approx(0.037, abs=5e-4)
    assert share("communication", "medium", "fsdp") == pytest.approx(0.171, abs=5e-4)


SIZE, WIDTH, HIDDEN, RANKS = 8, 12, 20, 4


def each_call(addend: list[Tensor], part: list[Tensor], share: list[Tensor]) -> list[Tensor]:
    """What a rank has of the weights, of both sums, and of the batch cut the other way."""
    rank, rows, cut = dist.get_rank(), WIDTH // RANKS, SIZE // RANKS
    full, summed = torch.empty(WIDTH, HIDDEN), addend[rank].clone()
    some, pieces = torch.empty(rows, HIDDEN), torch.empty(RANKS, cut, rows)
    minidist.all_gather_single(full, part[rank])
    minidist.all_reduce(summed)
    minidist.reduce_scatter_single(some, addend[rank])
    columns = [piece.contiguous() for piece in share[rank].tensor_split(RANKS, dim=1)]
    minidist.all_to_all_single(pieces, torch.stack(columns))
    return [full, summed, some, pieces.flatten(0, 1)]


def test_a_product_over_a_divided_dimension_leaves_addends_and_shapes_say_the_call() -> None:
    torch.manual_seed(0)
    x, weights, dy = (
        torch.randint(-9, 9, shape).float()  # whose sums are exact
        for shape in ((SIZE, WIDTH), (WIDTH, HIDDEN), (SIZE, HIDDEN))
    )
    batch = torch.arange(SIZE).tensor_split(RANKS)
    rows = torch.arange(WIDTH).tensor_split(RANKS)
    gradient = x.T @ dy
    assert all(torch.equal(x[mine] @ weights, (x @ weights)[mine]) for mine in batch)
    assert all(torch.equal(x.T[mine] @ dy, gradient[mine]) for mine in rows)
    outputs = [x[:, mine] @ weights[mine] for mine in rows]  # of a layer split by rows
    assert torch.equal(sum(outputs, torch.zeros(SIZE, HIDDEN)), x @ weights)
    addend = [x[mine].T @ dy[mine] for mine in batch]  # of DDP's and FSDP's gradient
    part, share = [weights[mine] for mine in rows], [x[mine] for mine in batch]
    for rank, found in enumerate(minidist.launch(each_call, RANKS, addend, part, share)):
        wanted = [weights, gradient, gradient[rows[rank]], x[:, rows[rank]]]
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
