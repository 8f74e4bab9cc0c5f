"""A shuffle is a reduce-scatter. The lab on MapReduce shows the other claims of its section."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from course.pages.price import ask
from minidist.mapreduce.map_reduce import map_reduce
from minidist.schedule import algorithms
from minidist.schedule.replay import goal
from minidist.schedule.schedule import bounds
from minidist.schedule.traffic import traffic
from tests.support.collectives import data, same


def in_chunks(tensor: torch.Tensor, n: int) -> list[tuple[int, torch.Tensor]]:
    edge = bounds(len(tensor), n)
    # A view would be pickled with the whole tensor that it is a view of.
    return [(c, tensor[edge[c] : edge[c + 1]].clone()) for c in range(n)]


def by_chunk(chunk: int, reducers: int) -> int:
    return chunk


def sums(_: int, parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum(0)


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


@pytest.mark.claim("A4")
@pytest.mark.parametrize(("gpus", "nodes"), [(16, 2), (64, 8)])
def test_without_a_ring_each_rank_s_parts_leave_its_node_one_by_one(gpus: int, nodes: int) -> None:
    gradients = 4 * 3_212_749_824  # of the small model, bytes

    def out_of_a_node(half: Any) -> float:
        """Tensors that leave a node."""
        return traffic(half, gpus, itemsize=1, local=8).between_nodes / gpus / nodes

    direct = out_of_a_node(algorithms.direct_reduce_scatter(gpus))
    assert direct == 8 * (gpus - 8) / gpus
    assert out_of_a_node(algorithms.ring_reduce_scatter(gpus)) == (gpus - 1) / gpus
    assert ask("direct", gpus=gpus) == pytest.approx(2 * direct * gradients / 400e9)
    into = algorithms.naive_broadcast(gpus).backwards("into the root", "reduce", reduce=True)
    from_others = traffic(into, 1, itemsize=1, local=8).between_nodes
    assert from_others == gpus - 8
    assert ask("one_reducer", gpus=gpus) == pytest.approx(2 * from_others * gradients / 50e9)


@pytest.mark.claim("A4")
def test_a_reducer_on_every_rank_of_64_takes_seven_times_as_long_as_a_ring() -> None:
    assert ask("one_reducer", gpus=64) == pytest.approx(28.79, abs=0.005)
    assert ask("direct", gpus=64) == pytest.approx(0.450, abs=0.0005)
    assert ask("all_reduce", gpus=64) == pytest.approx(0.0641, abs=0.0001)
    assert ask("direct", gpus=8) == pytest.approx(2 * 7 / 8 * 4 * 3_212_749_824 / 450e9)
