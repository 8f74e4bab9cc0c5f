"""Section A of the claims, each shown by a run; A5 is in test_elastic and train, A6 in test_ddp."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

import minidist
from course.training import models
from course.training.data import digits
from minidist.mapreduce.map_reduce import map_reduce
from minidist.schedule.schedule import bounds
from minidist.schedule.simulate import goal
from tests.support.collectives import data, same

Batch = tuple[torch.Tensor, torch.Tensor]
SHARDS = 4


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return models.mlp((64, 32, 10))


def flat_gradient(net: torch.nn.Module, batch: Batch) -> torch.Tensor:
    net.zero_grad()
    functional.cross_entropy(net(batch[0]), batch[1]).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def shards(batch: Batch) -> list[Batch]:
    return list(zip(*(part.tensor_split(SHARDS) for part in batch), strict=True))


def in_chunks(tensor: torch.Tensor, n: int) -> list[tuple[int, torch.Tensor]]:
    edge = bounds(len(tensor), n)
    # A view would be pickled with the whole tensor that it is a view of.
    return [(c, tensor[edge[c] : edge[c + 1]].clone()) for c in range(n)]


def by_chunk(chunk: int, reducers: int) -> int:
    return chunk


def sums(_: int, parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum(0)


@pytest.mark.claim("A1")
@pytest.mark.parametrize("reducers", [1, 3])
def test_a_training_step_as_map_and_reduce_has_the_gradient_of_the_whole_batch(
    reducers: int,
) -> None:
    def mapper(shard: Batch) -> list[tuple[int, torch.Tensor]]:
        return in_chunks(flat_gradient(network(), shard) / SHARDS, reducers)

    batch, net = tuple(part[:1796] for part in digits()), network()  # 4 equal quarters
    job = map_reduce(shards(batch), mapper, sums, reducers=reducers, partition=by_chunk)
    gradient = torch.cat([part[r] for r, part in enumerate(job.parts)])
    whole = flat_gradient(net, batch)
    own = flat_gradient(net, shards(batch)[0])
    assert torch.allclose(gradient, whole, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(own, whole, rtol=1e-4, atol=1e-7), "one shard's is another"


def on_sizes(sizes: range | list[int], run: Callable[[Any], Any]) -> Any:
    """What `run` gives on each rank of a group of the first ranks, by the group's size."""
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    return {size: run(group) for size, group in groups.items() if dist.get_rank() < size}


@pytest.mark.claim("A2")
def test_the_shuffle_whose_key_is_the_chunk_is_reduce_scatter() -> None:
    def scattered(group: Any) -> tuple[torch.Tensor, int]:
        """This rank's part of the sum, and the bytes that it sent."""
        mine = torch.empty(12)
        with minidist.record() as log:
            whole = data(dist.get_rank(), 12 * dist.get_world_size(group))
            minidist.reduce_scatter_tensor(mine, whole, group=group)
        return mine, sum(sent.nbytes for sent in log)

    sizes = [1, 2, 3, 5]
    found = minidist.launch(lambda: on_sizes(sizes, scattered), 5, device="cpu")
    for ranks in sizes:
        mapped = functools.partial(mapper_of, ranks=ranks)
        job = map_reduce(range(ranks), mapped, sums, reducers=ranks, partition=by_chunk)
        promised = goal("reduce_scatter", ranks, ranks)
        for r in range(ranks):
            mine, sent = found[r][ranks]
            assert [c for c in range(ranks) if promised[r][c]] == list(job.parts[r]) == [r]
            assert same(job.parts[r][r], mine)
            # Its boxes for the others are as many bytes as it sends in a reduce-scatter.
            assert sent == 4 * 12 * (ranks - 1)
        assert (job.records == 1).all()


def mapper_of(rank: int, ranks: int) -> list[tuple[int, torch.Tensor]]:
    return in_chunks(data(rank, 12 * ranks), ranks)


@pytest.mark.claim("A3")
def test_bytes_of_an_iteration_with_the_state_shipped_and_with_the_state_kept() -> None:
    weights, ranks = torch.ones(40_000), 4
    state = weights.nbytes

    def mapper(rank: int) -> list[tuple[int, torch.Tensor]]:
        return in_chunks(weights * (rank + 1), ranks)

    options: dict[str, Any] = {"reducers": ranks, "partition": by_chunk, "workers": ranks}
    job = map_reduce(range(ranks), mapper, sums, **options)
    overhead = 0.02 * state * ranks  # names, shapes and dtypes travel too
    assert abs(job.shipped - ranks * state) < overhead, "the weights, to every map task"
    assert abs(job.nbytes.sum() - ranks * state) < overhead, "the gradients, to the reducers"
    assert abs(job.returned - state) < overhead

    def step() -> int:
        with minidist.record() as log:
            minidist.all_reduce(weights.clone(), algorithm="ring")
        return sum(sent.nbytes for sent in log)

    kept = sum(minidist.launch(step, ranks))
    assert kept == 2 * (ranks - 1) * state
    assert job.shipped + job.nbytes.sum() + job.returned > 1.45 * kept
