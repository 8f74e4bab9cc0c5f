"""The claims of the chapter on DDP, each shown by a run."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import minidist
from course.chapters.disagree.failures.disagreeing import Forked
from course.training import data, models
from minidist.comm.replicas import check_replicas
from minidist.errors import RankError, ReplicaError
from minidist.memory.meter import measured

MIB = 2**20
EVEN, UNEVEN = [6, 6, 6, 6], [3, 5, 7, 9]
TENSORS = dict[str, torch.Tensor]
KINDS: dict[str, Callable[..., nn.Module]] = {
    "torch": nn.parallel.DistributedDataParallel,
    "minidist": minidist.DistributedDataParallel,
}


def images(count: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = data.digits()
    return pixels[:count].double(), labels[:count]


def gradients(net: nn.Module) -> torch.Tensor:
    """All of them in a row."""
    return torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """How far apart, as a part of the length of what is wanted."""
    return float((got - want).norm() / want.norm())


def mean_loss(net: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(net(batch[0]), batch[1])


# ---- C1 ----


def averages(batch: Any, shards: list[int], weigh: bool) -> tuple[float, float]:
    """How far DDP's gradient is from the whole batch's; and from that of a loss in which every
    rank weighs as much as every other."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = models.mlp().double()
    alone, model = deepcopy(net), minidist.DistributedDataParallel(net)
    if weigh:
        model.weigh(shards[rank])
    mean_loss(model, [part.split(shards)[rank] for part in batch]).backward()

    def off_from(weights: list[float]) -> float:
        alone.zero_grad()
        each = functional.cross_entropy(alone(batch[0]), batch[1], reduction="none")
        (each * torch.tensor(weights, dtype=each.dtype)).sum().backward()
        return off(gradients(net), gradients(alone))

    samples = sum(shards)
    by_rank = [1 / (ranks * size) for size in shards for _ in range(size)]
    return off_from([1 / samples] * samples), off_from(by_rank)


@pytest.mark.claim("C1")
def test_the_average_of_means_is_the_mean_of_the_whole_only_for_equal_shards() -> None:
    def run(batch: Any) -> None:
        assert averages(batch, EVEN, False)[0] < 1e-12
        from_whole, from_weighted = averages(batch, UNEVEN, False)
        assert from_whole > 0.05, "samples of small shards count for more"
        assert from_weighted < 1e-12, "and for exactly how much more is known"
        assert averages(batch, UNEVEN, True)[0] < 1e-12

    minidist.launch(run, 4, images(), device="cpu")


# ---- C2 ----


class Noisy(nn.Module):
    """Adds noise to what comes in: drawn as it comes, or for each sample by its number."""

    def __init__(self, by_sample: bool) -> None:
        super().__init__()
        self.by_sample, self.net = by_sample, models.mlp()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if not self.by_sample:
            return self.net(pixels + torch.randn_like(pixels))
        seeds = [int(1e6 * float(each.sum())) for each in pixels]
        drawn = [torch.randn(64, generator=torch.Generator().manual_seed(s)) for s in seeds]
        return self.net(pixels + torch.stack(drawn).view_as(pixels).double())


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 10))


NETS: dict[str, Callable[[], nn.Module]] = {
    "plain": models.mlp,
    "batch norm": models.convnet,
    "batch norm, evaluating": lambda: models.convnet().eval(),
    "dropout": with_dropout,
    "dropout, evaluating": lambda: with_dropout().eval(),
    "noise of each rank": lambda: Noisy(by_sample=False),
    "noise of each sample": lambda: Noisy(by_sample=True),
}
EQUAL = ["plain", "batch norm, evaluating", "dropout, evaluating", "noise of each sample"]


@pytest.mark.claim("C2")
def test_ddp_is_the_larger_batch_unless_samples_meet_or_ranks_draw() -> None:
    def run(batch: Any) -> None:
        for name, make in NETS.items():
            torch.manual_seed(0)
            net = make().double()
            alone, model = deepcopy(net), minidist.DistributedDataParallel(net)
            torch.manual_seed(dist.get_rank())  # as a rank should, for what it draws itself
            mean_loss(model, [part.chunk(4)[dist.get_rank()] for part in batch]).backward()
            mean_loss(alone, batch).backward()
            apart = off(gradients(net), gradients(alone))
            assert apart < 1e-12 if name in EQUAL else apart > 0.01, name

    minidist.launch(run, 4, images(), device="cpu")


# ---- A6 ----


class Trained(NamedTuple):
    """Of one rank, after some steps."""

    parameters: TENSORS
    buffers: TENSORS
    at_start: TENSORS  # buffers, as the last forward began
    replicas: str  # what the checksum says


def copies(tensors: Any) -> TENSORS:
    return {name: tensor.detach().clone() for name, tensor in tensors}


def steps(net: nn.Module, model: nn.Module, batch: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        optimizer.step()


def trained(batch: Any, kind: str, make: Any, broadcast_buffers: bool) -> Trained:
    torch.manual_seed(dist.get_rank())
    net, at_start = make(), TENSORS()
    net.register_forward_pre_hook(lambda *_: at_start.update(copies(net.named_buffers())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch has a new name for it
        model = KINDS[kind](net, broadcast_buffers=broadcast_buffers)
    steps(net, model, [part.chunk(3)[dist.get_rank()] for part in batch])
    try:
        said = f"{check_replicas(net):x}"
    except ReplicaError as error:
        said = str(error)
    return Trained(copies(net.named_parameters()), copies(net.named_buffers()), at_start, said)


def bits(tensors: TENSORS) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.claim("A6")
def test_our_replicas_are_equal_in_every_bit_and_not_those_of_one_process() -> None:
    pixels, labels = images()
    batch = pixels.float(), labels
    torch.manual_seed(0)
    net = models.mlp()
    steps(net, net, batch)
    one = copies(net.named_parameters())

    def run() -> list[Trained]:
        return [trained(batch, kind, models.mlp, True) for kind in KINDS]

    for ranks in zip(*minidist.launch(run, 3, device="cpu"), strict=True):
        first = ranks[0].parameters
        assert all(bits(each.parameters) == bits(first) for each in ranks)
        assert len({each.replicas for each in ranks}) == 1
        assert "differ" not in ranks[0].replicas
        assert all(torch.allclose(one[name], first[name], atol=1e-5) for name in one)
        assert bits(one) != bits(first), "the same terms, added in another order"


@pytest.mark.claim("A6", "C7")
def test_batch_norm_s_buffers_are_rank_0_s_as_a_forward_begins_and_differ_after_it() -> None:
    pixels, labels = images()
    batch = pixels.float(), labels
    cases = list(itertools.product(KINDS, (True, False)))

    def run() -> dict[Any, Trained]:
        return {case: trained(batch, case[0], models.convnet, case[1]) for case in cases}

    by_rank = minidist.launch(run, 3, device="cpu")
    name = "1.running_mean"
    for kind, broadcast in cases:
        ranks = [found[kind, broadcast] for found in by_rank]
        assert all(bits(each.parameters) == bits(ranks[0].parameters) for each in ranks)
        at_start = [bits(each.at_start)[name] for each in ranks]
        alone = bits(by_rank[0][kind, False].at_start)[name]
        assert at_start[0] == alone, "rank 0's own, and no average"
        assert len(set(at_start)) == (1 if broadcast else 3)
        # Even so each has put its own last batch into them since.
        assert len({bits(each.buffers)[name] for each in ranks}) == 3
        assert all(name in each.replicas for each in ranks), "and the check says so"


# ---- C5 ----


def layers(count: int, width: int) -> nn.Sequential:
    """Each with one weight, so that what is counted in bytes is counted in layers too."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def step(model: nn.Module, width: int) -> None:
    model.zero_grad()
    model(torch.randn(2, width)).square().mean().backward()


@pytest.mark.claim("C5")
def test_the_first_bucket_is_1_mib_in_torch_and_here() -> None:
    def run() -> None:
        torchs = nn.parallel.DistributedDataParallel(layers(10, 256))  # of 256 KiB each
        sizes: list[int] = []

        def watch(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            sizes.append(bucket.buffer().nbytes)
            return allreduce_hook(state, bucket)

        torchs.register_comm_hook(dist.group.WORLD, watch)
        ours = minidist.DistributedDataParallel(layers(10, 256))
        for model in (torchs, ours):
            for _ in range(2):  # the buckets are made anew after the first
                step(model, 256)
        assert sizes[-2:] == [bucket.nbytes for bucket in ours.buckets] == [MIB, 1.5 * MIB]

    minidist.launch(run, 2, device="cpu")


class Crossed(nn.Module):
    """Odd ranks go through its layers from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers) if dist.get_rank() % 2 else self.layers:
            x = layer(x).tanh()
        return x


@pytest.mark.claim("C5")
def test_buckets_follow_the_order_of_arrival_on_rank_0_on_all_ranks() -> None:
    def run() -> tuple[list[str], list[str], float]:
        torch.manual_seed(0)
        net, pair = Crossed().double(), 2 * 2 / 1024  # two layers
        alone = deepcopy(net)
        model = minidist.DistributedDataParallel(net, bucket_cap_mb=pair, first_bucket_mb=pair)
        for number in range(3):
            torch.manual_seed(dist.get_rank() + 10 * number)
            x = torch.randn(2, 16).double()
            for each in (model, alone):
                each.zero_grad()
                each(x).square().mean().backward()
        want = gradients(alone) / dist.get_world_size()
        dist.all_reduce(want)
        names = [name for bucket in model.buckets for name in bucket.names]
        return model.arrivals, names, off(gradients(net), want)

    arrivals, buckets, apart = zip(*minidist.launch(run, 3, device="cpu"), strict=True)
    from_the_last_layer_on = [f"layers.{number}.weight" for number in (3, 2, 1, 0)]
    assert arrivals[0] == from_the_last_layer_on
    assert arrivals[1] == arrivals[0][::-1], "on rank 1 they arrive the other way round"
    assert buckets == (arrivals[0],) * 3
    assert max(apart) < 1e-12


# ---- C6 ----


def raised(call: Callable[[], object]) -> str:
    """What it raises; "" if nothing."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.claim("C6")
def test_an_unused_parameter_raises_in_torch_at_the_next_forward_and_here_at_once() -> None:
    def run() -> None:
        x = torch.ones(2, 4)
        torchs = nn.parallel.DistributedDataParallel(Forked())
        torchs(x, "left").sum().backward()  # nothing is said, and nothing was averaged
        assert "did not receive grad" in raised(lambda: torchs(x, "left"))
        said = raised(minidist.DistributedDataParallel(Forked())(x, "left").sum().backward)
        assert "right.weight" in said
        assert "right.bias" in said
        assert "left" not in said

    minidist.launch(run, 2, device="cpu")


@pytest.mark.claim("C6")
def test_for_a_rank_that_leaves_parameters_out_others_wait_in_torch_and_are_told_here() -> None:
    def heard(kind: str) -> str:
        model = KINDS[kind](Forked())
        which = "left right" if dist.get_rank() else "left"
        return raised(lambda: [model(torch.ones(2, 4), which).sum().backward() for _ in range(2)])

    for said in minidist.launch(heard, 2, "minidist", device="cpu"):
        assert "got none for 2: right.weight, right.bias" in said
    with pytest.raises(RankError, match=r"rank 1 did not end(?s:.*)rank 0 had returned"):
        minidist.launch(heard, 2, "torch", device="cpu", timeout=8)


# ---- C9 ----


@pytest.mark.claim("C9")
def test_a_parameter_added_after_wrapping_is_not_averaged_and_here_it_is_an_error() -> None:
    def run() -> None:
        rank = dist.get_rank()

        def grown(kind: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
            net = nn.Sequential(nn.Linear(1, 1, bias=False))
            model = kind(net)
            net.append(nn.Linear(1, 1, bias=False))
            with torch.no_grad():
                net[0].weight.fill_(1)
                net[1].weight.fill_(1)
            model(torch.full((1, 1), rank + 1.0)).sum().backward()
            return net

        net = grown(nn.parallel.DistributedDataParallel)
        gradients = [float(layer.weight.grad) for layer in net]
        assert gradients == [1.5, rank + 1.0], "torch averages the first and not the second"
        assert "1.weight" in raised(lambda: grown(minidist.DistributedDataParallel))

    minidist.launch(run, 2, device="cpu")


# ---- C10 ----


@pytest.mark.claim("C10")
def test_views_into_the_buckets_save_the_gradients_bytes() -> None:
    """What a step leaves behind, the buckets being there already."""

    def run() -> list[int]:
        held = []
        for kind, views in itertools.product(KINDS.values(), (False, True)):
            model = kind(layers(6, 128), gradient_as_bucket_view=views)
            for _ in range(3):
                step(model, 128)
            model.zero_grad()
            held.append(measured(partial(step, model, 128)).end)
            assert all(p.grad is not None for p in model.parameters())
        return held

    gradients = 6 * 128 * 128 * 4
    notes = 16 * 1024  # of calls: some are let go by another thread, which is not watched
    for plain, views in (found[i : i + 2] for found in minidist.launch(run, 2) for i in (0, 2)):
        assert abs(plain - gradients) <= notes, "beside the buckets, which are as large"
        assert abs(views) <= notes


# ---- an error that the chapter explains ----


class Checkpointed(nn.Module):
    """A layer that is computed again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


def test_torch_marks_a_variable_twice_under_reentrant_checkpoints_and_not_under_others() -> None:
    unused = {"find_unused_parameters": True}
    runs = [(1, True, {}), (2, True, {"static_graph": True}), (2, False, {}), (2, False, unused)]
    fails = [(2, True, {}), (1, True, unused)]  # times that the layer is used, kind, options

    def run() -> None:
        for times, reentrant, options in runs + fails:
            net = nn.Sequential(nn.Linear(4, 4), *[Checkpointed(reentrant)] * times)
            model = nn.parallel.DistributedDataParallel(net, **options)
            said = [raised(model(torch.ones(2, 4)).sum().backward)]
            said += [] if said[0] else [raised(model(torch.ones(2, 4)).sum().backward)]
            if (times, reentrant, options) in runs:
                assert said == ["", ""]
            else:
                assert "mark a variable ready only once" in said[-1]

    minidist.launch(run, 2, device="cpu")
