"""A network split in two or three ways at once learns as one process, and sends what it must."""

import math
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss

from course.chapters.tensor import dimensions
from course.chapters.tensor.dimensions import (
    BLOCKS,
    HIDDEN,
    MICRO,
    SAMPLES,
    WIDTH,
    Run,
    alone,
    three_dimensional,
)
from course.chapters.tensor.figures import who_talks
from from_scratch.fsdp import FSDP
from minidist import launch

STEPS, FLOAT = 3, 4  # bytes
TWO = [{"data": 2, "tensor": 2}, {"data": 1, "tensor": 4}, {"data": 4, "tensor": 1}]
THREE = [
    {"data": 2, "pipeline": 2, "tensor": 2},
    {"data": 1, "pipeline": 4, "tensor": 2},
    {"data": 2, "pipeline": 1, "tensor": 4},
]


def fsdp_and_tensor(steps: int, sizes: dict[str, int]) -> Run:
    """On each rank of a mesh "data" × "tensor": FSDP between the groups that split each layer."""
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    x, y = (dimensions.of_replica(each, mesh) for each in dimensions.batch())
    net, losses = dimensions.split_network(mesh), []
    model = FSDP(net, net, dimensions.comm_of(mesh, "data"))
    optimizer = torch.optim.SGD(model.shards, 0.1)
    with dimensions.sent_on(mesh) as sent:
        for _ in range(steps):
            loss = mse_loss(model(x), y)
            torch.autograd.backward(loss)
            model.synchronize()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(dimensions.mean(loss.item()))
    return Run(losses, sent)


@cache
def ran(*sizes: tuple[str, int]) -> list[Run]:
    on_rank: Any = three_dimensional if len(sizes) == 3 else fsdp_and_tensor
    ranks = math.prod(size for _, size in sizes)
    return launch(on_rank, ranks, STEPS, dict(sizes), device="cpu", timeout=300)


def of(sizes: dict[str, int]) -> list[Run]:
    return ran(*sizes.items())


@pytest.mark.parametrize("sizes", [*TWO, *THREE], ids=str)
def test_the_losses_are_those_of_one_process(sizes: dict[str, int]) -> None:
    want = alone(STEPS)
    assert want == sorted(want, reverse=True)
    for run in of(sizes):
        assert run.losses == pytest.approx(want, rel=1e-6)


def expected(sizes: dict[str, int], rank: int) -> dict[str, int]:
    """Bytes that a rank sends in a step, in each dimension; all-reduces are rings."""
    data, tensor, stages = sizes["data"], sizes["tensor"], sizes.get("pipeline", 1)
    blocks, samples = BLOCKS // stages, SAMPLES // data
    part = 2 * WIDTH + 2 * WIDTH * HIDDEN // tensor  # parameters of a block: its norm, its weights
    sharded = 3 if "pipeline" not in sizes else 2  # two gathers and a reduce-scatter, or all-reduce
    found = {
        "data": sharded * FLOAT * blocks * part * (data - 1) // data,
        "tensor": 2 * blocks * 2 * FLOAT * samples * WIDTH * (tensor - 1) // tensor,
    }
    if "pipeline" in sizes:
        stage = rank // tensor % stages
        borders = (stage < stages - 1) + (stage > 0)  # activations to the next, gradients back
        found["pipeline"] = borders * samples * WIDTH * FLOAT
    return found


@pytest.mark.parametrize("sizes", [*TWO, *THREE], ids=str)
def test_each_dimension_sends_its_own_bytes(sizes: dict[str, int]) -> None:
    for rank, run in enumerate(of(sizes)):
        sent = {name: sum(to.values()) for name, to in run.sent.items()}
        assert sent == {name: STEPS * each for name, each in expected(sizes, rank).items()}


@pytest.mark.parametrize("sizes", [*TWO, *THREE], ids=str)
def test_a_rank_talks_to_those_that_differ_from_it_in_one_dimension(sizes: dict[str, int]) -> None:
    def place(rank: int) -> dict[str, int]:
        found = {}
        for name, size in reversed(sizes.items()):
            rank, found[name] = divmod(rank, size)
        return found

    for rank, run in enumerate(of(sizes)):
        for name, to in run.sent.items():
            for peer in to:
                differ = {key for key in sizes if place(rank)[key] != place(peer)[key]}
                assert differ == {name}


def test_micro_batches_divide_a_replicas_samples() -> None:
    assert all(SAMPLES // sizes["data"] % MICRO == 0 for sizes in THREE)


def test_the_picture_joins_whoever_sends() -> None:
    sizes = THREE[0]
    sent = [run.sent for run in of(sizes)]
    figure = who_talks(sent, sizes)
    pairs = {
        frozenset((rank, peer))
        for rank, each in enumerate(sent)
        for to in each.values()
        for peer in to
    }
    (axes,) = figure.axes
    kinds = Counter(type(patch).__name__ for patch in axes.patches)
    assert kinds == {"FancyArrowPatch": len(pairs)}
    assert len(pairs) == 12
    assert [text.get_text() for text in axes.texts] == [str(rank) for rank in range(8)]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    most = {name: max(sum(each[name].values()) for each in sent) for name in sizes}
    assert legend == [f"{name}: {nbytes:,} bytes" for name, nbytes in most.items()]
