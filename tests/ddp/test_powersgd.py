"""PowerSGD against dense linear algebra, against torch's, and by what it must not lose."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)

import minidist
from course.training.models import convnet
from minidist import launch
from minidist.comm.comm import Counted, Ours
from minidist.parallel.ddp.powersgd import PowerSGD, power_sgd
from minidist.profiler.timeline import timeline
from tests.ddp.one_bucket import (
    Alone,
    Gradients,
    OneBucket,
    backwards,
    gradients_of,
    net,
    torch_ddp,
)

SHAPES = [(14, 12), (5,), (5, 4, 3, 2), (7, 2), ()]  # the first and the third are worth it, r = 2
NAMES = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES]


def gradient(step: int, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 * step + 10 * rank + len(shape))
    common = torch.Generator().manual_seed(len(shape))  # what does not change is to be learnt
    numbers = torch.randn(shape, generator=source, dtype=torch.float64)
    return numbers + torch.randn(shape, generator=common, dtype=torch.float64)


def mean(step: int, ranks: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.stack([gradient(step, rank, shape) for rank in range(ranks)]).mean(0)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9) -> bool:
    return bool(torch.allclose(found, expected, rtol=tolerance, atol=tolerance))


def norm(tensor: torch.Tensor | None) -> float:
    assert tensor is not None
    return tensor.norm().item()


def error_of(state: PowerSGD, parameter: torch.Tensor) -> torch.Tensor | None:
    """What this rank still owes of the parameter's gradients, in its shape."""
    memory = state.memory.get(parameter)
    return None if memory is None else memory.error.view(parameter.shape)


def everything(state: PowerSGD) -> PowerSGD:
    """Compress every matrix, whether it is worth it or not."""
    state.compresses = lambda gradient: gradient.dim() > 1  # type: ignore[method-assign]
    return state


# ---- what is applied ----


def dense(
    steps: int, ranks: int, shape: tuple[int, ...], basis: torch.Tensor
) -> Iterator[torch.Tensor]:
    """What PowerSGD must apply, by one process, with projections and no QR: see the module."""
    error = torch.zeros(shape[0], basis.shape[0], dtype=torch.float64)
    for step in range(steps):
        whole = mean(step, ranks, shape).flatten(1) + error
        columns = whole @ basis
        applied = columns @ torch.linalg.pinv(columns) @ whole
        error = whole - applied
        basis = whole.T @ columns / columns.norm()
        yield applied.view(shape)


def applied_on_ranks(steps: int) -> dict[str, Any]:
    """From the second step on in two buckets, in another order."""
    comm = Ours(algorithm="ring")
    state = PowerSGD(comm, 2, 0)
    found: list[list[torch.Tensor]] = []
    for step in range(steps):
        gradients = [gradient(step, comm.rank, shape) for shape in SHAPES]
        cuts = [[4, 2], [0, 3, 1]] if step else [[0, 1, 2, 3, 4]]
        buckets = [
            OneBucket([gradients[i] for i in cut], [NAMES[i] for i in cut], n, last=cut is cuts[-1])
            for n, cut in enumerate(cuts)
        ]
        for handle in [power_sgd(state, bucket) for bucket in buckets]:
            handle.wait()
        result: dict[int, torch.Tensor] = {}
        for cut, bucket in zip(cuts, buckets, strict=True):
            result |= dict(zip(cut, bucket.gradients(), strict=True))
        found.append([result[i] for i in range(len(SHAPES))])
    errors = [error_of(state, name) for name in NAMES]
    return {"applied": found, "errors": errors, "step": state.step}


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_applied_is_the_mean_projected_and_nothing_is_lost(ranks: int) -> None:
    steps = 6
    results = launch(applied_on_ranks, ranks, steps)
    twin = PowerSGD(Alone(), 2)
    bases = {i: twin.recall(NAMES[i], NAMES[i]).basis for i in (0, 2)}
    for result in results[1:]:
        for mine, first in zip(result["applied"], results[0]["applied"], strict=True):
            assert all(torch.equal(*pair) for pair in zip(mine, first, strict=True))
    applied = results[0]["applied"]
    for i, shape in enumerate(SHAPES):
        means = [mean(step, ranks, shape) for step in range(steps)]
        wanted = dense(steps, ranks, shape, bases[i]) if i in bases else means
        for step, expected in enumerate(wanted):
            assert close(applied[step][i], expected), (step, shape)
        if i in bases:
            assert not close(applied[0][i], means[0], 0.1), "something was left out"
            errors = torch.stack([result["errors"][i] for result in results])
            total = sum(each[i] for each in applied) + errors.mean(0)
            assert close(total, sum(means)), "what was applied and what is owed"
        else:
            assert all(result["errors"][i] is None for result in results)
    assert all(result["step"] == steps for result in results)


# ---- torch's ----


def drawn_as_torch(state: PowerSGD, seed: int) -> PowerSGD:
    """With the first Q that torch's state of this seed has."""
    state._random.manual_seed(int(np.random.RandomState(seed).randint(1_000_000_000)))
    return state


def three_ways(rank: int) -> list[list[Gradients]]:
    """Torch's hook on torch's DDP, torch's on ours, ours on ours."""

    def theirs() -> PowerSGDState:
        options = {"start_powerSGD_iter": 2, "min_compression_rate": 2, "random_seed": 7}
        return PowerSGDState(None, matrix_approximation_rank=rank, **options)

    comm = Ours(algorithm="ring")
    foreign, own = (minidist.DistributedDataParallel(net(), comm=comm) for _ in range(2))
    foreign.register_comm_hook(theirs(), powerSGD_hook)
    own.register_comm_hook(drawn_as_torch(PowerSGD(comm, rank, 2), 7), power_sgd)
    models = torch_ddp(net(), theirs(), powerSGD_hook), foreign, own
    return [backwards(model, 7) for model in models]


def test_steps_are_those_of_torch_s() -> None:
    for wanted, *ways in launch(three_ways, 3, 3):
        for way in ways:
            for step, (mine, theirs) in enumerate(zip(way, wanted, strict=True)):
                assert mine.keys() == theirs.keys()
                for name, each in mine.items():
                    assert close(each, theirs[name], 1e-7), (step, name)


def test_this_rank_s_own_error_stays_small_where_torch_s_grows() -> None:
    """The same steps, though: only the mean of the errors matters."""

    def run() -> tuple[bool, list[float], list[float]]:
        comm, shape = Ours(algorithm="ring", check=False), (10, 10)
        state = drawn_as_torch(PowerSGD(comm, start=0), 0)
        theirs = PowerSGDState(None, 1, 2)
        theirs.iter = 2
        same, own, of_mean = True, [], []
        key = torch.nn.Parameter(torch.zeros(shape))
        for step in range(160):
            mine = gradient(0, comm.rank, shape)
            ours, other = OneBucket([mine], [key]), OneBucket([mine], [key])
            power_sgd(state, ours).wait()
            powerSGD_hook(theirs, other).wait()
            if step < 40:  # later, roundings have grown up
                same = same and close(ours.buffer(), other.buffer(), 1e-6)
            own.append(norm(error_of(state, key)))
            of_mean.append(norm(theirs.error_dict[0]))
        return same, own, of_mean

    for same, own, of_mean in launch(run, 2):
        assert same
        assert max(own) < 4 * own[9]
        assert of_mean[-1] > 6 * of_mean[9]


# ---- with DDP's other features: with all columns, nothing may differ from plain DDP ----


class Switch(torch.nn.Module):
    """It uses one of two layers, and never the third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 4).double() for _ in range(3))

    def forward(self, inputs: torch.Tensor, which: int) -> torch.Tensor:
        return self.layers[which](inputs)


def in_company(hooked: bool) -> dict[str, Gradients]:
    """Gradients in every situation, by PowerSGD or plain."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found: dict[str, Gradients] = {}

    def wrapped(module: torch.nn.Module, **options: Any) -> minidist.DistributedDataParallel:
        comm = Ours(algorithm="ring")
        model = minidist.DistributedDataParallel(module, comm=comm, **options)
        if hooked:
            model.register_comm_hook(everything(PowerSGD(comm, 99, 0)), power_sgd)
        return model

    options = {"bucket_cap_mb": 0.001, "first_bucket_mb": 0.001}
    model = wrapped(net(), gradient_as_bucket_view=True, **options)
    for number, each in enumerate(backwards(model, 3)):
        found[f"views {number}"] = each
    model = wrapped(Switch(), find_unused_parameters=True)
    for number in range(3):
        model(torch.full((2, 6), rank + 1.0).double(), rank % 2).square().sum().backward()
        found[f"unused {number}"] = gradients_of(model)
    model = wrapped(net())
    with model.no_sync():
        model(torch.full((2, 12), rank + 1.0).double()).square().sum().backward()
    model.weigh(rank + 1)
    model(torch.full((2, 12), rank + 2.0).double()).square().sum().backward()
    found["accumulated and weighed"] = gradients_of(model)
    model = wrapped(net())
    with model.join():
        for step in range(1 + rank):
            model.zero_grad()
            model(torch.full((2, 12), rank + step + 1.0).double()).square().sum().backward()
            if rank == ranks - 1:
                found[f"joined {step}"] = gradients_of(model)
    return found


def test_with_all_columns_it_is_plain_ddp_in_every_situation() -> None:
    for rank, (plain, compressed) in enumerate(
        launch(lambda: (in_company(False), in_company(True)), 2)
    ):
        assert len(plain) == 3 + 3 + 1 + 2 * (rank == 1)
        assert plain.keys() == compressed.keys()
        for case, gradients in plain.items():
            assert gradients.keys() == compressed[case].keys(), case
            for name, each in gradients.items():
                assert close(compressed[case][name], each, 1e-8), (rank, case, name)


# ---- traffic ----


def traffic(start: int) -> list[dict[str, Any]]:
    comm, found = Counted(Ours(algorithm="ring")), []
    state = PowerSGD(comm, 2, start)
    names = [torch.zeros(12, 24), torch.zeros(12), torch.zeros(2, 6)]
    for _ in range(start + 2):
        comm.clear()
        power_sgd(state, OneBucket([torch.randn_like(name) for name in names], names)).wait()
        found.append({"calls": list(comm.calls), "bytes": comm.bytes_sent})
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_p_and_what_is_whole_go_in_one_message_and_q_in_another(ranks: int) -> None:
    whole, first, second = (288 + 12 + 12) * 4, (12 * 2 + 12 + 12) * 4, 24 * 2 * 4
    for steps in launch(traffic, ranks, 3):
        for number, step in enumerate(steps):
            wanted = [whole] if number < 3 else [first, second]
            assert step["calls"] == [("all_reduce", size) for size in wanted]
            assert step["bytes"] == 2 * (ranks - 1) * sum(wanted) / ranks


def test_matrices_that_are_not_worth_it_go_whole() -> None:
    state = PowerSGD(Alone(), rank=2)
    sizes = {(8, 8): False, (8, 9): True, (9, 2, 2, 2): True, (144,): False, (): False}
    sizes |= {(2, 100): False, (0, 5): False, (1000, 1): False, (1, 1): False}
    assert {size: state.compresses(torch.empty(size)) for size in sizes} == sizes
    bucket = OneBucket([torch.ones(3), torch.ones(3, 3)])
    state.step = 10
    assert power_sgd(state, bucket).wait().tolist() == [1.0] * 12


def test_both_messages_are_on_the_timeline() -> None:
    def run() -> list[str]:
        comm = Ours()
        model = minidist.DistributedDataParallel(net(), comm=comm)
        model.register_comm_hook(PowerSGD(comm, 1, 0), power_sgd)
        with timeline() as line:
            backwards(model, 1)
        return [span.name for span in line.spans if span.lane == "communication"]

    assert launch(run, 2) == [["bucket 0", "Q of bucket 0"]] * 2


# ---- odd gradients ----


def test_zeros_and_lower_ranks_make_no_nan_and_zeros_are_forgotten() -> None:
    state, key = PowerSGD(Alone(), 3, 0), torch.zeros(20, 30)
    low = torch.outer(torch.arange(20.0), torch.arange(30.0))
    for each in (torch.zeros(20, 30), torch.zeros(20, 30), low, low):
        bucket = OneBucket([each], [key])
        assert power_sgd(state, bucket).wait().isfinite().all()
    assert norm(error_of(state, key)) < 1e-4 * low.norm()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_bad_step_is_seen_and_leaves_no_trace(bad: float) -> None:
    def run(steps: list[torch.Tensor]) -> list[torch.Tensor]:
        state, key = PowerSGD(Alone(), 1, 0), torch.zeros(8, 9)
        return [power_sgd(state, OneBucket([each], [key])).wait() for each in steps]

    good = [torch.randn(8, 9) for _ in range(4)]
    spoilt = good[2].clone()
    spoilt[3, 4] = bad
    found = run([*good[:2], spoilt, *good[2:]])
    assert not found[2].isfinite().any()
    del found[2]
    assert all(torch.equal(a, b) for a, b in zip(found, run(good), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_have_errors_of_32(dtype: torch.dtype) -> None:
    state, key = PowerSGD(Alone(), 2, 0), torch.zeros(16, 20)
    total, owed = torch.zeros(16, 20), None
    for step in range(5):
        each = gradient(step, 0, (16, 20)).to(dtype)
        bucket = OneBucket([each], [key])
        power_sgd(state, bucket).wait()
        (found,) = bucket.gradients()
        assert found.dtype == dtype
        total += each.float() - found.float()
        owed = error_of(state, key)
    assert owed is not None
    assert owed.dtype == torch.float32
    assert (total - owed).norm() < 0.02 * total.norm(), "but for the rounding of what was applied"


def test_gradients_laid_out_channels_last_are_the_same_numbers() -> None:
    def run() -> list[Gradients]:
        found = []
        for layout in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(1)
            comm = Ours(algorithm="ring")
            model = convnet().double().to(memory_format=layout)
            wrapped = minidist.DistributedDataParallel(model, comm=comm)
            wrapped.register_comm_hook(PowerSGD(comm, 1, 0), power_sgd)
            images = torch.randn(
                4, 1, 8, 8, generator=torch.Generator().manual_seed(comm.rank), dtype=torch.float64
            )
            wrapped(images.to(memory_format=layout)).square().sum().backward()
            found.append(gradients_of(wrapped))
        return found

    for plain, strided in launch(run, 2):
        assert strided["4.weight"].is_contiguous(memory_format=torch.channels_last)
        for name, each in plain.items():
            assert close(strided[name], each, 1e-6), name


def test_every_rank_draws_the_same_first_q_whatever_its_seed() -> None:
    bases = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        bases.append(PowerSGD(Alone()).recall(NAMES[0], NAMES[0]).basis)
    assert torch.equal(*bases)


# ---- arguments ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank 0: PowerSGD: rank: expected a whole number of at least 1, got 0"),
        ({"start": -1}, "rank 0: PowerSGD: start: expected a whole number of at least 0, got -1"),
        ({"rank": 1.5}, "rank 0: PowerSGD: rank: expected a whole number of at least 1, got 1.5"),
    ],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        PowerSGD(Alone(), **options)


def test_complex_gradients_are_refused() -> None:
    state = PowerSGD(Alone())
    with pytest.raises(TypeError, match=r"rank 0: bucket 2: expected real .* got torch.complex64"):
        power_sgd(state, OneBucket([torch.zeros(2, 2, dtype=torch.complex64)], index=2))
    assert state.step == 0
