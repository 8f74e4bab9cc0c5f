"""Section A of the claims, MapReduce and DDP, each shown by a run. A5's run is in test_elastic."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import minidist
from minidist.mapreduce.map_reduce import map_reduce
from minidist.schedule import algorithms
from minidist.schedule.cost import Link, seconds, switch
from minidist.schedule.schedule import Schedule, bounds
from minidist.schedule.simulate import goal, traffic
from tests.support.collectives import all_reduced, data, same

Batch = tuple[torch.Tensor, torch.Tensor]
SHARDS = 4


def digits() -> Batch:
    pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    return pixels[:1796].float() / 16, labels[:1796]  # 1796 = 4 equal quarters


def network(norm: bool = False) -> torch.nn.Sequential:
    torch.manual_seed(0)
    between = [torch.nn.BatchNorm1d(32)] if norm else []
    return torch.nn.Sequential(
        torch.nn.Linear(64, 32), *between, torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )


def flat_gradient(net: torch.nn.Module, batch: Batch) -> torch.Tensor:
    net.zero_grad()
    functional.cross_entropy(net(batch[0]), batch[1]).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def shards(batch: Batch, n: int = SHARDS) -> list[Batch]:
    return list(zip(batch[0].tensor_split(n), batch[1].tensor_split(n), strict=True))


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

    batch, net = digits(), network()
    job = map_reduce(shards(batch), mapper, sums, reducers=reducers, partition=by_chunk)
    gradient = torch.cat([part[r] for r, part in enumerate(job.parts)])
    whole = flat_gradient(net, batch)
    own = flat_gradient(net, shards(batch)[0])
    assert torch.allclose(gradient, whole, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(own, whole, rtol=1e-4, atol=1e-7), "one shard's is another"


def scattered(numel: int) -> tuple[torch.Tensor, int]:
    """On each rank: its part of the sum, and the bytes that it sent."""
    ranks = dist.get_world_size()
    mine = torch.empty(numel // ranks)
    with minidist.record() as log:
        minidist.reduce_scatter_tensor(mine, data(dist.get_rank(), numel))
    return mine, sum(sent.nbytes for sent in log)


@pytest.mark.claim("A2")
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_shuffle_whose_key_is_the_chunk_is_reduce_scatter(ranks: int) -> None:
    numel = 12 * ranks

    def mapper(rank: int) -> list[tuple[int, torch.Tensor]]:
        return in_chunks(data(rank, numel), ranks)

    job = map_reduce(range(ranks), mapper, sums, reducers=ranks, partition=by_chunk)
    on_ranks = minidist.launch(scattered, ranks, numel)
    for r, (mine, _) in enumerate(on_ranks):
        assert list(job.parts[r]) == [r]
        assert same(job.parts[r][r], mine)
    promised = goal("reduce_scatter", ranks, ranks)
    for r in range(ranks):
        assert [c for c in range(ranks) if promised[r][c]] == list(job.parts[r])
    # Each rank's boxes for the others are as many bytes as it sends in a reduce-scatter.
    assert (job.records == 1).all()
    assert {sent for _, sent in on_ranks} == {4 * (numel - numel // ranks)}


@pytest.mark.claim("A2")
def test_the_shuffle_goes_straight_where_the_ring_goes_round() -> None:
    for ranks in range(2, 34):
        straight = traffic(algorithms.direct_reduce_scatter(ranks), ranks)
        round_ = traffic(algorithms.ring_reduce_scatter(ranks), ranks)
        for way in (straight, round_):
            assert (way.sent_bytes == 4 * (ranks - 1)).all()
            assert (way.received_bytes == 4 * (ranks - 1)).all()


@pytest.mark.claim("A3")
def test_bytes_of_an_iteration_with_the_state_shipped_and_with_the_state_kept() -> None:
    numel, ranks = 40_000, 4
    state = 4 * numel

    def mapper(rank: int, weights: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        return in_chunks(weights * (rank + 1), ranks)

    def iteration(weights: torch.Tensor) -> Any:
        return map_reduce(
            range(ranks), lambda r: mapper(r, weights), sums,
            reducers=ranks, partition=by_chunk, workers=ranks,
        )  # fmt: skip

    job = iteration(torch.ones(numel))
    overhead = 0.02 * state * ranks  # names, shapes and dtypes travel too
    assert abs(job.shipped - ranks * state) < overhead, "the weights, to every map task"
    assert abs(job.nbytes.sum() - ranks * state) < overhead, "the gradients, to the reducers"
    assert abs(job.returned - state) < overhead

    def step() -> int:
        with minidist.record() as log:
            minidist.all_reduce(torch.ones(numel), algorithm="ring")
        return sum(sent.nbytes for sent in log)

    kept = sum(minidist.launch(step, ranks))
    assert kept == 2 * (ranks - 1) * state
    assert job.shipped + job.nbytes.sum() + job.returned > 1.45 * kept


def messages(numel: int) -> dict[str, list[Any]]:
    """Of an all-reduce by each algorithm, those that this rank sends."""
    logs: dict[str, list[Any]] = {}
    for algorithm in ("naive", "ring"):
        mine = data(dist.get_rank(), numel)
        with minidist.record() as logs[algorithm]:
            minidist.all_reduce(mine, algorithm=algorithm)
        assert same(mine, all_reduced(dist.get_world_size(), numel))
    return logs


@pytest.mark.claim("A4")
def test_one_reducer_is_a_bottleneck_simulated() -> None:
    for ranks in range(2, 65):
        size = 4 * ranks
        naive = traffic(algorithms.naive_all_reduce(ranks), ranks)
        ring = traffic(algorithms.ring_all_reduce(ranks), ranks)
        assert naive.busiest == 2 * (ranks - 1) * size
        assert ring.busiest == 4 * (ranks - 1) * size // ranks
        assert naive.sent_bytes.sum() == ring.sent_bytes.sum(), "the work is the same"


@pytest.mark.claim("A4")
@pytest.mark.claim("A8")
@pytest.mark.parametrize("ranks", range(2, 9))
def test_the_busiest_of_2_to_8_real_ranks(ranks: int) -> None:
    numel = 840  # cut evenly by 2 to 8
    size = 4 * numel
    moved = np.zeros((2, 2, ranks), dtype=int)  # naive or ring; sent or received; rank
    for logs in minidist.launch(messages, ranks, numel):
        for way, log in zip(moved, (logs["naive"], logs["ring"]), strict=True):
            for message in log:
                way[0, message.src] += message.nbytes
                way[1, message.dst] += message.nbytes
    naive, ring = moved
    assert naive.sum(axis=0).max() == 2 * (ranks - 1) * size
    assert (naive[:, 0] == (ranks - 1) * size).all()
    assert (naive[:, 1:] == size).all()
    assert (ring == 2 * (ranks - 1) * size // ranks).all()


@pytest.mark.claim("A4")
def test_one_reducer_s_inbox_against_that_of_r() -> None:
    def inboxes(reducers: int) -> np.ndarray:
        job = map_reduce(
            range(4), lambda r: in_chunks(data(r, 40_000), reducers), sums,
            reducers=reducers, partition=by_chunk,
        )  # fmt: skip
        return job.nbytes.sum(axis=0)

    one, four = inboxes(1), inboxes(4)
    assert max(four) < 1.02 * one[0] / 4


def trained(steps: int, norm: bool = False, broadcast_buffers: bool = True) -> dict[str, Any]:
    """Some steps of PyTorch's DDP on this rank's shard.

    Its parameters, its buffers, and its buffers as the last forward pass began.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net = network(norm)
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    model = DistributedDataParallel(net, **({} if broadcast_buffers else {option: False}))
    at_start: dict[str, torch.Tensor] = {}
    net.register_forward_pre_hook(lambda *_: at_start.update(snapshot(net.named_buffers())))
    pixels, labels = shards(digits(), ranks)[rank]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    parameters, buffers = snapshot(net.named_parameters()), snapshot(net.named_buffers())
    return {"parameters": parameters, "buffers": buffers, "at start": at_start}


def snapshot(tensors: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors}


def alike(tensors: list[dict[str, torch.Tensor]]) -> bool:
    """Whether all ranks have the same, in every bit."""
    return all(same(each[name], tensors[0][name]) for each in tensors for name in each)


@pytest.mark.claim("A6")
def test_replicas_stay_bit_equal_but_not_bit_equal_to_one_process() -> None:
    ranks = minidist.launch(trained, SHARDS, 5)
    parameters = [each["parameters"] for each in ranks]
    assert alike(parameters)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net, (pixels, labels) = network(), digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(net(pixels), labels).backward()
        optimizer.step()
    torch.set_num_threads(threads)
    alone = snapshot(net.named_parameters())
    assert all(torch.allclose(alone[n], parameters[0][n], atol=1e-5) for n in alone)
    assert not alike([alone, parameters[0]]), "the same terms, added in another order"


@pytest.mark.claim("A6")
@pytest.mark.parametrize("broadcast_buffers", [True, False])
def test_batch_norm_s_buffers_differ_unless_they_are_broadcast(broadcast_buffers: bool) -> None:
    ranks = minidist.launch(trained, SHARDS, 3, True, broadcast_buffers)
    assert alike([each["parameters"] for each in ranks])
    assert alike([each["at start"] for each in ranks]) == broadcast_buffers
    # Even so each has put its own last batch into them since.
    assert not alike([each["buffers"] for each in ranks])


def latencies(build: Callable[[int], Schedule], ranks: int) -> float:
    """What an all-reduce of next to nothing takes, in units of alpha."""
    return seconds(build(ranks), 0, switch(Link(alpha=1.0, beta=1e-9)))


def slope(x: Any, y: Any) -> tuple[float, float]:
    """Of the best straight line, and the largest distance from it."""
    line = np.polyfit(x, y, 1)
    return float(line[0]), float(np.abs(np.polyval(line, x) - y).max())


@pytest.mark.claim("A7")
def test_the_ring_s_latency_grows_with_n_the_trees_with_its_logarithm() -> None:
    counts = list(range(2, 65))
    ring = [latencies(algorithms.ring_all_reduce, n) for n in counts]
    assert ring == [2 * (n - 1) for n in counts]
    assert np.allclose(slope(counts, ring), (2, 0))

    powers = [2**k for k in range(1, 11)]
    logs = {"tree": 2, "recursive_doubling": 1}
    for name, per_doubling in logs.items():
        build = getattr(algorithms, f"{name}_all_reduce")
        took = [latencies(build, n) for n in powers]
        assert np.allclose(slope(np.log2(powers), took), (per_doubling, 0))
        assert slope(powers, took)[1] > 1, "no straight line in N"
    assert slope(np.log2(powers), [2 * (n - 1) for n in powers])[1] > 100, "the ring: none in log N"


@pytest.mark.claim("A8")
@pytest.mark.parametrize(
    ("name", "symmetric"),
    [("ring", True), ("halving_doubling", True), ("naive", False), ("tree", False)],
)
def test_who_sends_and_receives_the_same(name: str, symmetric: bool) -> None:
    build = getattr(algorithms, f"{name}_all_reduce")
    for ranks in (4, 8, 16, 32):
        moved = traffic(build(ranks), 4 * ranks)
        each = set(moved.sent_bytes) | set(moved.received_bytes)
        assert (len(each) == 1) == symmetric, (ranks, each)
