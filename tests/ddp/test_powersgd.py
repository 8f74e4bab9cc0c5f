"""PowerSGD against dense linear algebra, against torch's, and by what it must not lose."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from minidist import Counted, Ours, launch
from minidist.parallel.ddp.powersgd import PowerSGD, power_sgd
from tests.support.one_bucket import Alone, filled

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


def dense(
    steps: int, ranks: int, shape: tuple[int, ...], basis: torch.Tensor
) -> Iterator[torch.Tensor]:
    """What PowerSGD must apply, by one process, with projections and no QR."""
    error = torch.zeros(shape[0], basis.shape[0], dtype=torch.float64)
    for step in range(steps):
        whole = mean(step, ranks, shape).flatten(1) + error
        columns = whole @ basis
        applied = columns @ torch.linalg.pinv(columns) @ whole
        error = whole - applied
        basis = whole.T @ columns / columns.norm()
        yield applied.view(shape)


def applied_on_ranks(steps: int) -> tuple[list[list[torch.Tensor]], dict[int, torch.Tensor]]:
    """What is applied in each step, and is owed at the end; at last in two buckets."""
    comm = Ours(algorithm="ring")
    torch.manual_seed(comm.rank)  # the first Q is the same for all that
    state, found = PowerSGD(comm, 2, 0), []
    for step in range(steps):
        gradients = [gradient(step, comm.rank, shape) for shape in SHAPES]
        cuts = [[4, 2], [0, 3, 1]] if step else [[0, 1, 2, 3, 4]]
        buckets = [
            filled([gradients[i] for i in cut], [NAMES[i] for i in cut], n, last=cut is cuts[-1])
            for n, cut in enumerate(cuts)
        ]
        for handle in [power_sgd(state, bucket) for bucket in buckets]:
            handle.wait()
        pairs = zip(cuts, buckets, strict=True)
        result = {i: g for cut, b in pairs for i, g in zip(cut, b.gradients(), strict=True)}
        found.append([result[i] for i in range(len(SHAPES))])
    assert state.step == steps
    owed = {i: state.kept[name]["error"] for i, name in enumerate(NAMES) if name in state.kept}
    return found, {i: error.view(SHAPES[i]) for i, error in owed.items()}


def test_what_is_applied_is_the_mean_projected_and_nothing_is_lost() -> None:
    steps, ranks = 6, 3
    results = launch(applied_on_ranks, ranks, steps)
    twin = PowerSGD(Alone(), 2)
    kept = {i: twin.recall(NAMES[i], NAMES[i]) for i in (0, 2)}
    bases = {i: each["q"] for i, each in kept.items() if each}
    applied = results[0][0]
    for i, shape in enumerate(SHAPES):
        means = [mean(step, ranks, shape) for step in range(steps)]
        wanted = dense(steps, ranks, shape, bases[i]) if i in bases else means
        for step, expected in enumerate(wanted):
            assert all(torch.equal(found[step][i], applied[step][i]) for found, _ in results)
            assert close(applied[step][i], expected), (step, shape)
        if i in bases:
            assert not close(applied[0][i], means[0], 0.1), "something was left out"
            owed = torch.stack([errors[i] for _, errors in results]).mean(0)
            assert close(sum(each[i] for each in applied) + owed, sum(means))
    assert all(errors.keys() == bases.keys() for _, errors in results)


def test_this_rank_s_own_error_stays_small_where_torch_s_grows() -> None:
    """The same steps, though: only the mean of the errors matters."""

    def run() -> tuple[list[float], list[float]]:
        state = PowerSGD(Ours(algorithm="ring", check=False), start=0)
        state.random.manual_seed(209652396)  # the first Q of torch's state of seed 0
        theirs = PowerSGDState(None, 1, 2)
        theirs.iter = 2
        key = torch.zeros(10, 10, dtype=torch.float64)
        own, of_mean = [], []
        for step in range(160):
            mine = gradient(0, state.comm.rank, (10, 10))
            ours, other = filled([mine], [key]), filled([mine], [key])
            power_sgd(state, ours).wait()
            powerSGD_hook(theirs, other).wait()
            if step < 40:  # later, roundings have grown up
                assert close(ours.buffer(), other.buffer(), 1e-6)
            own.append(state.kept[key]["error"].norm().item())
            of_mean.append(theirs.error_dict[0].norm().item())
        return own, of_mean

    for own, of_mean in launch(run, 2):
        assert max(own) < 4 * own[9]
        assert of_mean[-1] > 6 * of_mean[9]


def test_p_and_what_is_not_worth_it_go_in_one_message_and_q_in_another() -> None:
    def run() -> list[list[int]]:
        comm, found = Counted(Ours(algorithm="ring")), []
        state = PowerSGD(comm, 2, 1)
        names = [torch.zeros(12, 24), torch.zeros(12), torch.zeros(2, 6)]
        for _ in range(2):
            comm.clear()
            power_sgd(state, filled([torch.randn_like(name) for name in names], names)).wait()
            found.append([call.nbytes for call in comm.calls])
        return found

    assert launch(run, 3)[0] == [[4 * 312], [4 * (12 * 2 + 12 + 12), 4 * 24 * 2]]
    state = PowerSGD(Alone(), rank=2)
    sizes = {(8, 8): False, (8, 9): True, (9, 2, 2, 2): True, (144,): False, (0, 5): False}
    for size, worth_it in sizes.items():
        assert bool(state.recall(torch.empty(size), torch.empty(size))) == worth_it, size
    wave = torch.empty(8, 9, dtype=torch.complex64)
    assert state.recall(wave, wave) is None


def alone(steps: list[torch.Tensor], rank: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What one rank applies, and what it owes at the end."""
    state, key = PowerSGD(Alone(), rank, 0), torch.zeros_like(steps[0])
    found = [power_sgd(state, filled([each], [key])).wait().view_as(key) for each in steps]
    return found, state.kept[key]["error"]


def test_zeros_lower_ranks_and_16_bits() -> None:
    low = torch.outer(torch.arange(20.0), torch.arange(30.0))
    found, owed = alone([0 * low, 0 * low, low, low], 3)
    assert torch.stack(found).isfinite().all()
    assert owed.norm() < 1e-4 * low.norm(), "a Q of zeros has found its way back"
    for dtype in (torch.float16, torch.bfloat16):
        steps = [gradient(step, 0, (16, 20)).to(dtype) for step in range(5)]
        found, owed = alone(steps, 2)
        lost: Any = sum(a.float() - b.float() for a, b in zip(steps, found, strict=True))
        assert (found[0].dtype, owed.dtype) == (dtype, torch.float32)
        assert (lost - owed).norm() < 0.02 * lost.norm(), "but for the rounding of what was applied"


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_bad_step_is_seen_and_leaves_no_trace(bad: float) -> None:
    good = [torch.randn(8, 9) for _ in range(4)]
    spoilt = good[2].clone()
    spoilt[3, 4] = bad
    found, _ = alone([*good[:2], spoilt, *good[2:]], 1)
    assert not found.pop(2).isfinite().any()
    assert all(map(torch.equal, found, alone(good, 1)[0]))
