"""The claims of the first chapter: memory of training, names of ranks, groups, backends."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minidist
from minidist.collectives.runtime.group import backends as backends_of
from minidist.memory.meter import measured
from minidist.memory.state import FP32, MIXED, StateBytes, held, state

GB = 10**9
BILLION = 10**9


def linear() -> torch.nn.Module:
    return torch.nn.Linear(300, 7)


def tied() -> torch.nn.Module:
    """Two modules share one weight, as embedding and output of a language model often do."""
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    net[2].weight = net[0].weight
    return net


def with_buffers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.BatchNorm1d(96))


Trained = tuple[torch.nn.Module, torch.optim.Optimizer]


def train(net: torch.nn.Module, width: int, **options: object) -> Trained:
    """Two steps; gradients of the second one are kept."""
    kind = getattr(torch.optim, str(options.pop("kind")))
    optimizer = kind(net.parameters(), lr=1e-3, **options)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(5, width)).square().sum().backward()
        optimizer.step()
    return net, optimizer


def train_mixed(net: torch.nn.Module, width: int) -> Trained:
    """As for training in bf16 with fp32 master weights, which only the optimizer sees."""
    net.bfloat16()
    masters = [weight.detach().float().requires_grad_() for weight in net.parameters()]
    optimizer = torch.optim.Adam(masters, lr=1e-3)
    for _ in range(2):
        net.zero_grad()
        net(torch.ones(5, width, dtype=torch.bfloat16)).square().sum().backward()
        for master, weight in zip(masters, net.parameters(), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for master, weight in zip(masters, net.parameters(), strict=True):
                weight.copy_(master)
    return net, optimizer


MODELS = [(linear, 300), (tied, 64), (with_buffers, 64)]
SGD = {"kind": "SGD"}
OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "sgd": [SGD],
    "momentum": [SGD | {"momentum": 0.9}],
    "adam": [{"kind": "Adam"}, {"kind": "AdamW"}],
}


def counted(run: Callable[[], Trained]) -> tuple[int, int, StateBytes, int]:
    """Parameters; bytes of counters and buffers, of the state, and of all that is allocated."""
    curve = measured(run)
    net, optimizer = curve.value
    counters = sum("step" in kept for kept in optimizer.state.values())
    beside = 4 * counters + sum(buffer.nbytes for buffer in net.buffers())
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return parameters, beside, held(net, optimizer), curve.end


@pytest.mark.claim("D1")
def test_what_is_held_and_allocated_is_what_was_predicted() -> None:
    choices = [(name, options) for name, many in OPTIMIZERS.items() for options in many]
    for (name, options), (make, width) in itertools.product(choices, MODELS):
        run = lambda: train(make(), width, **options)  # noqa: B023, E731
        parameters, beside, state_bytes, live = counted(run)
        predicted = state(parameters, FP32, name)
        assert state_bytes == predicted
        assert live == predicted.total + beside, "to the last byte"


@pytest.mark.claim("D1")
def test_adam_in_fp32_takes_four_times_the_weights() -> None:
    one = state(1)
    assert one == StateBytes(weights=4, gradients=4, master=0, moments=8)
    assert (one.total, one.total / one.weights) == (16, 4)
    sizes = [25 * 10**6, 340 * 10**6, 70 * BILLION, 175 * BILLION]
    weights = [state(parameters).weights for parameters in sizes]
    assert weights == [100 * 10**6, 1_360 * 10**6, 280 * GB, 700 * GB]
    totals = [state(parameters).total for parameters in sizes]
    assert totals == [4 * each for each in weights]
    assert [state(n, MIXED, "momentum").total for n in (0, 1, 3.0)] == [0, 12, 36]
    assert state(1, optimizer="sgd").total == 8
    assert state(1, optimizer="momentum").total == 12


@pytest.mark.claim("D2")
def test_mixed_precision_holds_two_and_two_and_twelve() -> None:
    for make, width in MODELS[:2]:
        run = lambda: train_mixed(make(), width)  # noqa: B023, E731
        parameters, beside, found, live = counted(run)
        assert found == state(parameters, MIXED)
        assert live == found.total + beside
        each = [found.weights, found.gradients, found.optimizer]
        assert [part / parameters for part in each] == [2, 2, 12]


@pytest.mark.claim("D2")
def test_without_a_master_copy_small_updates_are_lost() -> None:
    weight, master = torch.ones((), dtype=torch.bfloat16), torch.ones(())
    for _ in range(1000):
        weight += 1e-3
        master += 1e-3
    assert weight == 1
    assert abs(master.item() - 2) < 1e-3


def test_autocast_keeps_16_bit_copies_of_weights_from_forward_to_backward() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(4)))
    batch = torch.randn(1, 512, requires_grad=True)

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(batch).float().square().mean()  # type: ignore[no-any-return]

    count = sum(each.numel() for each in net.parameters())
    after, end = measured(forward), measured(lambda: forward().backward())  # type: ignore[no-untyped-call]
    assert 2 <= (after.end - after.start) / count < 2.1
    assert 4 <= (end.end - end.start) / count < 4.1, "the fp32 gradients alone"


@pytest.mark.claim("C16")
def test_rows_and_then_columns_of_a_mesh_sum_the_whole() -> None:
    rows, columns, ranks = 2, 3, 6
    mesh = torch.arange(ranks).view(rows, columns)

    def run() -> None:
        row, _ = dist.new_subgroups_by_enumeration(mesh.tolist())
        column, _ = dist.new_subgroups_by_enumeration(mesh.T.tolist())
        tensor = (10 ** dist.get_rank()) * torch.tensor([1, 2, 3])
        whole = tensor.clone()
        minidist.all_reduce(whole)
        in_row = mesh[dist.get_rank() // columns].tolist()
        for group, summed in ((row, in_row), (column, range(ranks))):
            with minidist.record() as log:
                minidist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [n * sum(10**r for r in summed) for n in (1, 2, 3)]
            members = dist.get_process_group_ranks(group)
            for src, dst in ((members[sent.src], members[sent.dst]) for sent in log):
                assert src // columns == dst // columns or src % columns == dst % columns
        assert torch.equal(tensor, whole)

    minidist.launch(run, ranks)


@pytest.mark.claim("C17")
@pytest.mark.filterwarnings("ignore")  # torch warns before it raises
def test_a_group_on_cpus_is_gloo_s_and_a_backend_torch_was_not_built_with_is_refused() -> None:
    def joins(name: str) -> str:
        if dist.is_initialized():
            dist.destroy_process_group()
        try:
            dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        except RuntimeError as error:
            return str(error)
        return "joined"

    def run() -> None:
        tensor = torch.tensor(dist.get_rank(), device=minidist.device())
        dist.all_reduce(tensor)
        here = dist.get_backend(), backends_of(None)["cpu"], str(minidist.device()), int(tensor)
        assert here == ("gloo", "gloo", "cpu", 3)
        for name in ("nccl", "mpi"):
            there, said = getattr(dist, f"is_{name}_available")(), joins(name)
            assert said == "joined" if there else f"doesn't have {name.upper()} built in" in said

    minidist.launch(run, 3, device="cpu")
