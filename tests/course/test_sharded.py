"""Tables of the chapters on memory, ZeRO and FSDP: against numbers worked out by hand."""

import pytest

from course.pages.price import ask
from course.pages.published import published
from course.pages.sharded import (
    block_forward,
    counted_elsewhere,
    ddp_beside_fsdp,
    gather,
    hidden_from,
    in_units,
    latency,
    on_each_rung,
    what_fits,
)
from minidist.planner.hardware import H100

GB = 1e9
MEDIUM, BLOCK = 8_030_261_248, 218_112_000  # parameters of Llama 3.1 8B, and of a layer
ROOT = MEDIUM - 32 * BLOCK  # its embedding, last norm and head
LIMIT = 0.9 * 80 * 2**30 / GB


def test_the_same_models_under_ddp_and_fsdp() -> None:
    rows = ddp_beside_fsdp(published("ddp_fsdp_zero"))
    assert [row[0] for row in rows] == [23, 168, 731, 2603]
    assert rows[0][1:] == [32, 48, pytest.approx(0.55, abs=0.01), pytest.approx(0.12, abs=0.01)]
    assert rows[-1][1:] == ["", 279, "", pytest.approx(6.22, abs=0.01)]


@pytest.mark.claim("E7")
def test_fsdp_has_room_where_ddp_has_none() -> None:
    found = what_fits("small", 64)
    ways = "ddp", "fsdp_kept", "fsdp"
    assert [*found] == [(way, again) for again in (True, False) for way in ways]
    for recompute in (True, False):
        assert found["fsdp", recompute][0] > found["ddp", recompute][0]
        assert found["fsdp", recompute][0] >= found["fsdp_kept", recompute][0]
    assert found["fsdp", True][0] > found["fsdp", False][0] > found["fsdp_kept", False][0] > 0
    assert all((speed > 0) == (most > 0) for most, speed in found.values())
    again, kept = found["ddp", True], found["fsdp", False]
    assert again[0] > 0 == found["ddp", False][0], "DDP fits, and only if it recomputes"
    assert found["fsdp", True][1] == pytest.approx(again[1], rel=0.05), "then they are level"
    assert kept[1] > 1.25 * again[1], "without the extra forward FSDP is faster"


def test_bytes_per_parameter_as_others_count_them() -> None:
    head, rows = counted_elsewhere()
    assert [row[-1] for row in rows] == [8, 10, 16, 18, 20, 20, 24]
    assert {len(row) for row in rows} == {len(head)}
    small = 3_212_749_824
    for strategy, each in (("single", 20), ("ddp", 24)):
        gpus = 1 if strategy == "single" else 8
        peak = ask("peak", "small", gpus=gpus, tokens=2048, strategy=strategy)
        assert peak == each * small, "the end of a step is its peak"


def test_a_rank_under_each_strategy_by_hand() -> None:
    """The medium job on 8 GPUs: 8,192 tokens, a checkpoint at every layer."""
    bars, peaks = on_each_rung("medium", 8, 8192)
    each = {"DDP": 16, "ZeRO-1": 4 + 4 + 1, "ZeRO-2": 4 + 0.5 + 1}
    each |= dict.fromkeys(("FSDP, weights kept", "FSDP"), 2)
    for name, nbytes in each.items():
        held = sum(bars[name][part] for part in ("parameters", "gradients", "optimizer state"))
        assert held == pytest.approx(nbytes * MEDIUM / GB, rel=1e-6)
    state = 12 / 8 * MEDIUM  # as backward begins there are no gradients
    kept = 2 * (MEDIUM + ROOT + BLOCK)  # all weights in bf16, the root's and a layer's gradients
    units = 2 * (2 * ROOT + 3 * BLOCK)  # instead of all weights the root's and two layers'
    activations = bars["FSDP"]["activations"]
    assert peaks["FSDP, weights kept"] == pytest.approx((state + kept) / GB + activations, rel=1e-6)
    begin, end = (state + units) / GB + activations, (2 * MEDIUM + 6 * ROOT + 4 * BLOCK) / GB
    assert peaks["FSDP"] == pytest.approx(max(begin, end), rel=1e-6)
    assert peaks["DDP"] > 2 * LIMIT > LIMIT > max(peaks["ZeRO-1"], peaks["ZeRO-2"])


def test_weights_kept_are_a_rung_of_their_own() -> None:
    """2 + 4 = 6 bytes per parameter; ZeRO-2, which has full fp32 weights, needs more memory."""
    sent = {
        way: ask("sent", "medium", gpus=8, strategy=way) / MEDIUM * 8 / 7
        for way in ("ddp", "zero2", "fsdp_kept", "fsdp")
    }
    assert sent == pytest.approx({"ddp": 8, "zero2": 8, "fsdp_kept": 6, "fsdp": 8})
    small = [ask("peak", "small", gpus=8, strategy=way) / GB for way in ("zero2", "fsdp_kept")]
    assert small == pytest.approx([67.8, 47.3], abs=0.1)
    fits = [ask("peak", "medium", gpus=n, strategy="fsdp_kept") / GB < LIMIT for n in (16, 32)]
    assert fits == [False, True]


def test_a_step_is_never_faster_than_its_bytes_or_its_compute() -> None:
    """The root counts: 8 bytes of all parameters, 6 if weights are kept, and all of compute."""
    for tokens in (512, 2048, 8192):
        compute = ask("compute", "medium", gpus=128, tokens=tokens)
        for strategy, each in (("fsdp", 8), ("fsdp_kept", 6)):
            least = each * MEDIUM * 127 / 128 / 400e9
            took = ask("step", "medium", gpus=128, tokens=tokens, strategy=strategy)
            assert took > max(least, compute)


def test_units_of_two_layers_take_least_where_latency_counts() -> None:
    with_prefetch = {size: in_units(size, 1) for size in (1, 2, 4, 8, 16, 32)}
    assert min(with_prefetch, key=with_prefetch.__getitem__) == 2
    assert with_prefetch[8] == pytest.approx(1.213, abs=5e-4)
    assert all(in_units(size, 0) > with_prefetch[size] for size in with_prefetch)
    assert in_units(1, 1, 8192) < 1.001 * in_units(2, 1, 8192), "and not with a full sequence"


def test_a_ring_s_latency_grows_with_the_ranks() -> None:
    """Ring/Simple on 128: base 8.4 µs, 127 steps, of which 15 leave a node; tuning.cc, 2.30."""
    simple = 8.4e-6 + 112 * 3.4e-6 + 15 * 14e-6
    assert latency(128) == pytest.approx(simple)
    assert gather(128) == pytest.approx(simple + 2 * BLOCK * 127 / 128 / 400e9)
    ll128 = 14e-6 + 896 * 1.9e-6 + 127 * 4e-6
    assert latency(1024) == pytest.approx(ll128)
    assert block_forward(2048) < gather(512) < gather(1024)
    assert 1.8e-3 < block_forward(2048) < 2.1e-3


def test_tokens_that_hide_a_layer_s_collectives() -> None:
    rate = 989e12 * 0.56 * 4096 / (4096 + 560)
    alone = rate / 400e9 * 127 / 128
    assert hidden_from(128, waiting=False) == pytest.approx((alone, 1.5 * alone))
    forward, backward = hidden_from(128)
    assert forward == pytest.approx(alone + latency(128) * rate / (2 * BLOCK))
    assert backward == pytest.approx(1.5 * alone + 2 * latency(128) * rate / (4 * BLOCK))
    fast = hidden_from(128, gpu=H100._replace(flops=4 * 989e12))
    assert fast == pytest.approx((4 * forward, 4 * backward))
    many = hidden_from(1024)[0]
    assert many == pytest.approx(gather(1024) * rate / (2 * BLOCK)), "at the bandwidth of LL128"
    assert many > alone + latency(1024) * rate / (2 * BLOCK)
