"""Machines, precisions and Muon: what they change in a plan, and to what rates are fitted."""

from statistics import median
from typing import Any

import pytest

from course.pages import grids
from minidist.formulas import muon
from minidist.formulas.compute import rate
from minidist.formulas.inputs import TrainingStep
from minidist.formulas.links import into_nodes
from minidist.formulas.memory import memory
from minidist.formulas.step import forecast, works
from minidist.formulas.update import orthogonalizing, sent_to_owners
from minidist.memory.state import AUTOCAST
from minidist.planner.hardware import ASSUMED, B200, FASTER, GB200, H100
from minidist.planner.jobs import MEDIUM, matrices
from minidist.planner.planner import each_of, plan
from minidist.planner.search import search
from minidist.planner.sizes import Sizes
from tests.support.cases import alike

MIXTURE = Sizes(**grids.models.mixture(24, 2048, 1024, 16, 4, 32_000, 4096, 64, 4))


# ---- machines ----


def test_ranks_of_an_nvlink_domain_of_72_meet_in_64_of_it() -> None:
    splits: dict[tuple[int, int, int], tuple[int, int]] = {
        (64, 1, 1): (64, 1),
        (72, 1, 1): (72, 1),
        (128, 1, 1): (64, 2),
        (144, 1, 1): (72, 2),
        (1024, 1, 1): (64, 16),
        (576, 1, 1): (72, 8),
        (128, 8, 1): (8, 2),  # nine tensor groups would fit
        (144, 8, 1): (9, 2),
        (256, 4, 16): (4, 1),
        (256, 128, 1): (1, 2),
    }
    found = {(n, t, p): into_nodes(n, GB200, t, p) for n, t, p in splits}
    alike(found, splits)
    assert [into_nodes(n, H100) for n in (8, 12, 16)] == [(8, 1), (4, 3), (8, 2)]


def test_hybrid_sharding_is_offered_where_64_of_72_meet() -> None:
    assert "hsdp" in plan(MEDIUM, "GB200", 128).forecasts
    assert "hsdp" in plan(MEDIUM, "GB200", 144).forecasts
    assert "hsdp" not in plan(MEDIUM, "GB200", 72 + 8).forecasts
    assert "hsdp" not in plan(MEDIUM, "GB200", 64).forecasts


def blackwell(gpu: str, aside: bool, mixture: bool = False) -> list[float]:
    """Predicted over published speeds of such rows of a GPU, in precisions that a plan knows."""
    return [
        run.ratio
        for run in grids.runs()
        if run.row["gpu"] == gpu
        and run.row["precision"] in FASTER
        and (run.row["aside"], run.row["sizes"].experts > 0) == (aside, mixture)
    ]


@pytest.mark.parametrize(
    ("gpu", "rows", "error", "others", "off"),
    [("B200", 9, 0.04, 5, 0.05), ("GB200", 19, 0.08, 4, 0.07)],
)
def test_the_rate_of_blackwell_is_fitted_to_dense_models_and_holds_for_rows_set_aside(
    gpu: str, rows: int, error: float, others: int, off: float
) -> None:
    fit, aside = blackwell(gpu, False), blackwell(gpu, True)
    assert (len(fit), len(aside)) == (rows, others)
    assert median(fit) == pytest.approx(1, abs=0.015)
    assert median(abs(1 - each) for each in fit) < error
    assert median(abs(1 - each) for each in aside) < off
    assert max(abs(1 - each) for each in fit) < 0.4


def test_mixtures_on_blackwell_are_predicted_too_fast() -> None:
    """Of experts a plan does not know all that takes time: on a B200 more than half as much."""
    assert median(blackwell("B200", False, True)) == pytest.approx(1.66, abs=0.1)
    assert median(blackwell("GB200", False, True)) == pytest.approx(1.2, abs=0.1)


def test_a_gb300_is_assumed_for_its_few_rows_want_more_than_a_rate_can_give() -> None:
    assert {"B300 SXM", "GB300 NVL72"} < ASSUMED
    found = blackwell("GB300", False)
    assert len(found) == 4
    assert GB200.utilization / median(found) > 0.95


# ---- precisions ----


def pairs(one: str, other: str) -> list[tuple[grids.Run, grids.Run]]:
    """Published runs that differ in precision alone."""
    alone = ("precision", "seconds", "tokens_per_s_per_gpu", "tflops", "peak_GiB", "aside", "sizes")
    found: dict[str, dict[str, grids.Run]] = {}
    for run in grids.runs():
        same = [each for name, each in run.row.items() if name not in (*alone, "best", "sweep")]
        found.setdefault(str(same), {}).setdefault(run.row["precision"], run)
    return [(each[one], each[other]) for each in found.values() if {one, other} <= {*each}]


def gains(found: list[tuple[grids.Run, grids.Run]]) -> tuple[list[float], list[float]]:
    """How many times as fast the second is, as published and as predicted."""
    seen = [other.published / one.published for one, other in found]
    return seen, [other.predicted / one.predicted for one, other in found]


def test_what_eight_bits_gain_is_predicted_within_a_tenth() -> None:
    """On H100s: GPT-3, Nemotron, Llama 3 and Grok-1, from 8 to 2,304 GPUs."""
    dgxc = [pair for pair in pairs("bf16", "fp8") if pair[0].row["source"].startswith("dgxc")]
    seen, told = gains(dgxc)
    assert len(dgxc) > 30
    assert median(seen) == pytest.approx(1.38, abs=0.02)
    assert 1.2 < min(seen) < max(seen) < 1.555
    assert median(told) == pytest.approx(median(seen), rel=0.1)
    assert sorted(abs(1 - b / a) for a, b in zip(seen, told, strict=True))[-4] < 0.13


def test_finer_scales_cost_a_twentieth_of_the_step() -> None:
    dense = [pair for pair in pairs("fp8", "mxfp8") if not pair[0].row["sizes"].experts]
    seen, told = gains(dense)
    assert len(dense) == 7
    assert median(seen) == pytest.approx(0.954, abs=0.005)
    assert median(told) == pytest.approx(median(seen), rel=0.01)


def test_eight_bits_speed_up_the_blocks_matrices_and_change_no_bytes() -> None:
    plain, eight = (
        plan(MEDIUM, "H100", 64, precision=each).forecasts["fsdp"] for each in ("bf16", "fp8")
    )
    assert (eight.memory, eight.sent) == (plain.memory, plain.sent)
    matrices_ = 3 * (MEDIUM.operations - MEDIUM.attention - MEDIUM.head) / rate(H100, MEDIUM.width)
    assert plain.compute - eight.compute == pytest.approx(matrices_ * (1 - 1 / FASTER["fp8"]))
    assert "are taken to be 1.5 times as fast" in " ".join(
        str(plan(MEDIUM, "H100", 8, precision="fp8")).split()
    )
    told = search(MEDIUM, "B200", 8, 8, precision="mxfp8")
    assert any("1.4 times" in each for each in told.reasons)
    assert told.best[0].seconds < search(MEDIUM, "B200", 8, 8).best[0].seconds


# ---- Muon ----


def step(sizes: Sizes = MEDIUM, ranks: int = 64, gpu: Any = H100, **how: Any) -> TrainingStep:
    each = each_of(sizes, AUTOCAST, "muon")
    return TrainingStep(sizes, gpu, each, *into_nodes(ranks, gpu), muon=True, **how)


def test_shapes_are_those_of_the_jobs_and_of_modules() -> None:
    shapes = [(rows, columns) for rows, columns, count in MEDIUM.matrices for _ in range(count)]
    wanted = [sorted(shape) for shape in matrices("medium")]
    assert sorted(map(sorted, shapes * MEDIUM.units)) == sorted(wanted)
    for sizes in (MEDIUM, MIXTURE, Sizes.gpt(2, 64, 64, 32)):
        inside = sum(rows * columns * count for rows, columns, count in sizes.matrices)
        vectors = sizes.largest_unit - inside
        assert 0 < vectors < 14 * sizes.width


@pytest.mark.parametrize("ranks", [8, 64, 128])
def test_the_update_is_priced_as_owner_by_owner(ranks: int) -> None:
    """With 128 owners of 224 matrices some have more than their share."""
    one, shapes = step(ranks=ranks), matrices("medium")
    work = [muon.newton_schulz(*shape) for shape in shapes]
    plain = forecast(TrainingStep(MEDIUM, H100, one.each, *into_nodes(ranks, H100)), "fsdp")
    told = forecast(one, "fsdp")
    assert told["sent"] - plain["sent"] == pytest.approx(muon.sent(shapes, ranks))
    products = muon.most_owned(shapes, work, ranks) / rate(H100, MEDIUM.width)
    update = sum(work_.takes for work_ in works(one, "fsdp") if work_.kind == "update")
    moves = plan(MEDIUM, H100, ranks).forecasts["fsdp"].memory_traffic
    assert 0.6 * products < update <= products + moves
    held = memory(one, "fsdp")["update"] - one.each.update * MEDIUM.parameters / ranks
    assert held == pytest.approx(muon.held(shapes, ranks), rel=0.4)


def test_an_owner_has_a_matrix_at_least() -> None:
    few, many = (step(ranks=ranks) for ranks in (1024, 4096))
    assert orthogonalizing(few, "fsdp") == orthogonalizing(many, "fsdp")
    largest = max(muon.newton_schulz(*shape) for shape in matrices("medium"))
    assert orthogonalizing(few, "fsdp") == pytest.approx(largest / rate(H100, MEDIUM.width))


def test_state_has_one_moment_of_the_matrices_and_two_of_all_else() -> None:
    inside = sum(rows * columns for rows, columns in matrices("medium"))
    held = memory(step(), "single")["optimizer"]
    assert held == pytest.approx(4 * inside + 8 * (MEDIUM.parameters - inside), rel=1e-9)
    adam, ours = (
        plan(MEDIUM, "H100", 64, optimizer=each).forecasts["fsdp"] for each in ("adam", "muon")
    )
    assert ours.memory["optimizer"] < 0.6 * adam.memory["optimizer"]
    assert adam.overlapped < ours.overlapped < 1.1 * adam.overlapped


def test_without_shards_every_rank_orthogonalizes_all_and_sends_nothing_for_it() -> None:
    alone, ddp, fsdp = (forecast(step(), each) for each in ("single", "ddp", "fsdp"))
    work = sum(muon.newton_schulz(*shape) for shape in matrices("medium"))
    without = forecast(TrainingStep(MEDIUM, H100, step().each), "single")
    takes = work / rate(H100, MEDIUM.width)
    assert alone["overlapped"] - without["overlapped"] == pytest.approx(takes)
    assert ddp["overlapped"] - fsdp["overlapped"] > takes / 2
    kinds = {name: [each.kind for each in works(step(), name)] for name in ("ddp", "zero1", "fsdp")}
    assert [kinds[name].count("all-to-all") for name in kinds] == [0, 2, 2]


def test_micro_batches_share_one_update() -> None:
    one, many = (forecast(step(accumulated=each), "fsdp") for each in (1, 3))
    plain = [
        forecast(TrainingStep(MEDIUM, H100, step().each, 8, 8, accumulated=each), "fsdp")
        for each in (1, 3)
    ]
    update = one["overlapped"] - plain[0]["overlapped"]
    assert many["overlapped"] - plain[1]["overlapped"] == pytest.approx(update, rel=1e-6)
    extra = one["communication"] - plain[0]["communication"]
    assert many["communication"] - plain[1]["communication"] == pytest.approx(extra, rel=1e-6)


def test_experts_are_owned_by_those_who_share_them() -> None:
    """However many ranks split the experts, each of all has the same share of the work."""
    each, found = each_of(MIXTURE, AUTOCAST, "muon"), []
    for expert in (1, 8):
        sizes = Sizes(**grids.models.part(MIXTURE, 1, 1, 1, 1, "1f1b", 1, expert))
        found.append(TrainingStep(sizes, B200, each, 8, 2, expert=expert, muon=True))
    for what in (orthogonalizing, sent_to_owners):
        whole, split = (what(one, "zero1") for one in found)
        assert split == pytest.approx(whole)
    whole, split = (orthogonalizing(one, "ddp") for one in found)
    assert split < 0.2 * whole, "of which a rank has an eighth of the experts"


def test_a_search_prices_the_update_of_muon() -> None:
    adam, ours = (search(MEDIUM, "H100", 16, 64, optimizer=each) for each in ("adam", "muon"))
    assert ours.best[0].spent["update"] > adam.best[0].spent["update"]
    assert ours.best[0].forecast.peak < ours.hardware.memory
