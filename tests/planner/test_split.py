"""Plans of models that are split by width and by depth before data parallelism."""

from dataclasses import fields
from functools import partial
from itertools import product
from typing import Any

import pytest

from minidist.formulas import nccl
from minidist.formulas.models import fullest
from minidist.memory.state import AUTOCAST
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM
from minidist.planner.planner import Forecast, plan
from minidist.planner.split import Split
from minidist.schedule.pipeline import (
    bubble,
    interleaved,
    most_held,
    one_f_one_b,
    program,
    replay,
)
from tests.support.cases import alike
from tests.support.refusals import all_refused

LLAMA: dict[str, Any] = {"tensor": 8, "pipeline": 16, "micro_batches": 16}
GRID = tuple(LLAMA.values())


def forecasts(model: Any = LARGE, gpus: int = 16_384, **how: Any) -> dict[str, Forecast]:
    return plan(model, "H100", gpus, **how).forecasts


def test_a_model_that_is_not_split_is_planned_as_it_is() -> None:
    assert Split().part(LARGE) == LARGE
    assert (Split().bubble, Split().held, Split().ranks) == (0, 1, 1)
    assert forecasts(MEDIUM, 16)["fsdp"].bubble == 0


def test_llamas_grid_takes_what_its_bubble_and_its_activations_add() -> None:
    for stages in (1, 2, 8):
        found = forecasts(**LLAMA, interleaved=stages)["zero2"]
        tokens, layers = 16 * 8192, 8  # the most of a rank, of 126
        node = 16 * tokens * LARGE.width * layers * 7 / 8  # 4 all-reduces of bf16 per block
        done = LARGE.operations - LARGE.attention + LARGE.attention / H100.attention
        blocks = layers / 126 * (done - LARGE.head)  # of a rank without the head
        compute = 3 * 16 * blocks / 8 / H100.rate(LARGE.width / 4)  # 8 ranks narrow it so
        assert found.compute == pytest.approx(compute, rel=1e-3)
        waits = 15 / 16 / stages * (found.compute + node / H100.nvlink)  # and some latency
        hops = 2 * (16 * stages - 1) if stages > 1 else 30 + 28
        waits += hops * 2 * 8192 * LARGE.width / 8 / H100.network
        assert found.bubble == pytest.approx(waits, rel=0.02)
        replicas = (
            8 * layers * LARGE.largest_unit / 8 * 127 / 128
        )  # fp32 gradients and weights: the cards
        border = 4 * stages * tokens * LARGE.width / 8
        assert found.sent == pytest.approx(node + replicas + border, rel=1e-3)
        weights = 4 * layers * LARGE.largest_unit / 8
        assert found.memory["weights"] == pytest.approx(weights, rel=1e-6)


def test_llamas_step_takes_as_long_as_published_and_its_state_fits() -> None:
    """41% of the peak on 16,384 GPUs, of 6 operations per parameter and token and all attention."""
    found = forecasts(**LLAMA, interleaved=8)["zero2"]
    each = 6 * LARGE.parameters + 12 * LARGE.units * LARGE.width * LARGE.tokens
    step = each * 16 * 128 * 8192 / 16_384 / (0.41 * H100.flops)
    assert found.overlapped / step == pytest.approx(1.148, abs=0.005)
    assert sum(found.memory[part] for part in ("weights", "gradients", "optimizer")) < 20e9
    assert not found.fits, "a block that keeps all of what autocast makes"
    assert forecasts(**LLAMA, interleaved=8, checkpointing=True)["zero2"].fits
    alone = forecasts(checkpointing=True)
    assert not any(each.fits for each in alone.values()), "data parallelism alone"


def test_activations_are_those_of_the_micro_batches_in_flight() -> None:
    """As many as there are ranks, of a rank's own blocks; interleaved one rank's stages more."""
    one = LARGE.activations / 8 * 8 / 126  # of a rank's blocks and one micro-batch
    for micro_batches, stages, held in ((4, 1, 4), (16, 1, 16), (64, 1, 16), (64, 8, 17.875)):
        split = Split(8, 16, micro_batches, stages)
        assert split.held == held
        assert micro_batches * split.part(LARGE).activations == pytest.approx(held * one)
    many, few = (forecasts(**LLAMA | {"micro_batches": m})["zero1"].peak for m in (64, 16))
    assert many == pytest.approx(few, rel=1e-6)
    many, few = (
        forecasts(**LLAMA | {"micro_batches": m}, checkpointing=True)["zero1"].memory["activations"]
        for m in (64, 16)
    )
    assert many == pytest.approx(few), "with checkpoints, too"


def test_the_slowest_rank_is_that_of_the_best_of_all_ways_to_place_whole_blocks() -> None:
    found, right = {}, {}
    for case in product((1, 3, 5, 8), (2, 3, 4), (0.0, 0.5, 1.0, 2.5, 9.0)):
        blocks, ranks, head = case
        sizes = MEDIUM._replace(units=blocks, operations=blocks + head, head=head)
        _, uneven = fullest(sizes, ranks)
        found[case] = uneven * (blocks + head) / ranks
        ways = [each for each in product(range(blocks + 1), repeat=ranks) if sum(each) == blocks]
        right[case] = pytest.approx(min(max(*each[:-1], each[-1] + head) for each in ways))
    alike(found, right)


def test_bubble_held_activations_and_messages_are_those_of_the_orders() -> None:
    found, right = {}, {}
    for case in [(1, 1, 1), *product((2, 3, 8), (1, 2, 5), (1, 2, 3))]:
        ranks, rounds, chunks = case
        micro = ranks * rounds
        order = interleaved(ranks, micro, chunks) if chunks > 1 else one_f_one_b(ranks, micro)
        split = Split(1, ranks, micro, chunks)
        sends = forecasts(LARGE, ranks, **split._asdict())["single"].messages
        waits = split.bubble / (1 + split.bubble)  # of the step, as an order's is
        found[case] = waits, split.held, sends
        right[case] = (
            pytest.approx(bubble(replay(order))),
            pytest.approx(most_held(order)[0] / chunks),
            max(sum(call.sends for call in program(order, rank)) for rank in range(ranks)),
        )
    alike(found, right)


def test_tensor_parallelism_splits_activations_and_the_state_of_a_rank() -> None:
    """Twice as many GPUs for as many replicas: each holds half, and computes half, if slower."""
    whole, half = (forecasts(MEDIUM, 16 * t, tensor=t)["fsdp"] for t in (1, 2))
    assert 2 * half.memory["activations"] == pytest.approx(whole.memory["activations"])
    assert 2 * half.memory["weights"] == pytest.approx(whole.memory["weights"], rel=1e-6)
    slower = H100.rate(MEDIUM.width) / H100.rate(MEDIUM.width / 2 ** (2 / 3))
    assert half.compute == pytest.approx(slower * whole.compute / 2)


def test_tensor_groups_fill_nodes_and_cross_them_if_they_are_larger() -> None:
    """Then rings use all network cards of their nodes, 400 GB/s for NVLink's 450."""
    near, far = (forecasts(LARGE, 256, tensor=t)["single"].communication for t in (8, 16))
    calls, size = 8 * LARGE.units, LARGE.tokens * LARGE.width * 2
    assert near == pytest.approx(calls * nccl.seconds("all_gather", size, 1, 8, H100))
    assert far == pytest.approx(calls * nccl.seconds("all_gather", size, 2, 8, H100))
    assert far / near == pytest.approx(450 / 400 * (15 / 16) / (7 / 8), rel=0.05)
    replicas = forecasts(MEDIUM, 16, tensor=8)["ddp"]  # two of them, one on each node
    tensor = 16 * 8192 * MEDIUM.width * MEDIUM.units * 7 / 8
    assert replicas.sent == pytest.approx(tensor + 4 * MEDIUM.parameters / 8, rel=1e-3)


def test_a_batch_fits_up_to_the_largest_one() -> None:
    how: dict[str, Any] = {"tensor": 8, "pipeline": 4, "micro_batches": 8, "checkpointing": True}
    largest = forecasts(MEDIUM, 64, **how)["ddp"].largest_batch
    fits = [forecasts(MEDIUM, 64, **how, batch=largest + n)["ddp"].fits for n in (0, 1)]
    assert fits == [True, False]


def test_what_gathers_for_every_micro_batch_is_left_out_of_a_pipeline() -> None:
    assert list(forecasts(MEDIUM, 64, pipeline=4, micro_batches=8)) == [
        "single", "ddp", "zero1", "zero2", "fsdp_kept",
    ]  # fmt: skip
    assert {"fsdp", "hsdp"} < set(forecasts(MEDIUM, 64, tensor=4))


def test_a_plan_names_the_bubble_and_says_what_helps() -> None:
    told = str(plan(LARGE, "H100", 16_384, **LLAMA, checkpointing=True))
    assert "and a bubble of" in told
    assert "bubble" not in str(plan(MEDIUM, "H100", 64))
    told = str(plan(LARGE, "H100", 64, tensor=8))
    assert "Nothing fits" in told
    assert "Split it further, by `tensor` or `pipeline`" in told


def test_every_field_of_a_forecast_is_finite_and_none_is_negative() -> None:
    for found in forecasts(**LLAMA, policy=AUTOCAST).values():
        for field in fields(found):
            value = getattr(found, field.name)
            values = value.values() if isinstance(value, dict) else [value]
            assert all(0 <= each < 1e30 for each in values)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tensor": 0}, "tensor must be at least 1, got 0"),
    ({"pipeline": 2.5}, "pipeline: expected a whole number, got 2.5"),
    ({"ranks": 100}, r"ranks: expected a multiple of tensor \* pipeline = 128, got 100"),
    ({"ranks": 3 * 16, "tensor": 3}, "tensor: expected a divisor of .* width 16384, got 3"),
    ({"interleaved": 9}, "pipeline: expected at most 128 stages, .* got 144"),
    ({"pipeline": 1}, "micro_batches: expected 1 without a pipeline, got 16"),
    ({"pipeline": 1, "micro_batches": 1, "interleaved": 2}, "interleaved: expected 1 without"),
    ({"interleaved": 2, "micro_batches": 24}, "multiple of the pipeline's 16 ranks, .* got 24"),
]


def test_a_model_that_cannot_be_split_so_is_refused() -> None:
    def asked(ranks: Any = 16_384, **how: Any) -> Any:
        return plan(LARGE, "H100", ranks, **LLAMA | how)

    rows = [(partial(asked, **how), said) for how, said in BAD]
    all_refused(rows, ValueError, TypeError)
