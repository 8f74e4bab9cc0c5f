"""Plans against what the library itself prices, predicts and counts; and bad input."""

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import minidist
from minidist.formulas import links, memory, nccl
from minidist.formulas import step as formulas
from minidist.formulas.compute import compute
from minidist.formulas.inputs import TrainingStep
from minidist.formulas.links import into_nodes
from minidist.memory.activations import saved
from minidist.memory.predict import predict
from minidist.memory.state import AUTOCAST, FP32, MIXED, DtypePolicy, Strategy, bytes_each
from minidist.planner.hardware import A100, ACCELERATORS, H100, Accelerator
from minidist.planner.planner import ROOM, plan
from minidist.planner.search import search
from minidist.planner.sizes import Sizes
from minidist.schedule.algorithms import hierarchical_all_reduce, ring_all_reduce
from minidist.schedule.cost import Link, nodes, price, switch
from minidist.schedule.lanes import spans
from minidist.schedule.traffic import traffic
from minidist.train.gpt import GPT
from tests.support.cases import alike
from tests.support.refusals import all_refused

SMALL = Sizes.gpt(2, 64, 64, 32)
SEVEN = Sizes.gpt(32, 4096, 32_000, 2048)  # 6.6 billion
LARGE = Sizes.gpt(34, 4096, 32_000, 2048)
SEVENTY = Sizes.gpt(80, 8192, 128_000, 8192)
STATE = ("weights", "gradients", "optimizer")


def forecasts(sizes: Sizes, hardware: Accelerator | str, ranks: int, **how: Any) -> Any:
    return plan(sizes, hardware, ranks, **how).forecasts


# ---- sizes ----


def test_sizes_are_counted_and_in_closed_form_the_same() -> None:
    with torch.device("meta"):
        net = GPT(512, 128, 3, 4, 64)
    counted = Sizes.of(net, torch.zeros(2, 64, dtype=torch.long))
    formula = Sizes.gpt(3, 128, 512, 64)
    assert counted[:4] == formula[:4]
    assert counted.tokens == formula.tokens == 64
    assert counted.width == formula.width == 128
    assert counted.outputs == formula.outputs == 512 * 64
    # The formula leaves out what LayerNorms and attention keep of a token beside its numbers.
    assert counted.activations == pytest.approx(formula.activations, rel=5e-3)
    assert counted.activations_checkpointed == pytest.approx(
        formula.activations_checkpointed, rel=5e-3
    )


def test_a_module_that_no_rule_knows_is_counted_by_what_autograd_keeps() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(4 * 36, 3))
    found = Sizes.of(net, torch.zeros(2, 1, 8, 8))
    # Softplus keeps its input, and the linear layer its own.
    assert found.activations == 2 * 4 * 36
    assert (found.outputs, found.width) == (3, 4)
    assert (found.units, found.largest_unit, found.tokens) == (1, found.parameters, 1)
    assert found.operations == 2 * (36 * 9 * 4 + 4 * 36 * 3)


class Named(OrderedDict[str, Any]):
    """As Hugging Face's ModelOutput: no type that torch's pytree knows."""


class Wraps(nn.Module):
    """Returns what another module makes in a dict or a tuple, with something beside it."""

    def __init__(self, inner: nn.Module, kind: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, x: torch.Tensor) -> Any:
        return self.kind(self.inner(x))


KINDS: list[Callable[[Any], Any]] = [
    lambda y: Named(loss=None, ids=torch.zeros(9, dtype=torch.long), logits=y, cache=(y.sum(),)),
    lambda y: (y, y.sum()),
    lambda y: [{"logits": y}, None],
]


def test_a_model_may_return_a_dict_or_a_tuple() -> None:
    net, x = nn.Sequential(nn.Linear(6, 4), nn.Softplus(), nn.Linear(4, 5)), torch.zeros(2, 6)
    for kind in KINDS:
        assert Sizes.of(Wraps(net, kind), x) == Sizes.of(net, x)
        minidist.plan(Wraps(net, kind), "H100", 2, sample=x)


def test_an_lstm_is_counted_step_by_step() -> None:
    found = Sizes.of(nn.LSTM(6, 4, batch_first=True), torch.zeros(2, 5, 6))
    assert found.operations == 5 * 2 * (6 + 4) * 4 * 4
    assert found.activations == 5 * (7 * 4)  # gates, cell, tanh, last output
    assert found.parameters == 4 * 4 * (6 + 4 + 2)


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    return net


def test_a_module_that_would_be_counted_wrongly_is_refused() -> None:
    def of(module: Any, sample: Any = None, **how: Any) -> Callable[[], Sizes]:
        return partial(Sizes.of, module, torch.zeros(1, 2) if sample is None else sample, **how)

    net, named = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    first = "model: expected samples along the first dimension, got batch_first"
    trained = "model: expected .* all trained, .* got 2 frozen ones, such as 0.weight"
    nothing, apart = Wraps(net, lambda y: None), Wraps(net, lambda y: {"a": y.detach()})
    all_refused(
        [
            (of(net, torch.zeros(())), "sample: expected a tensor of at least one"),
            (of(net, [1.0]), r"sample: expected a tensor .*, got \[1.0\]"),
            (of(3), "module: expected an nn.Module, got 3"),
            (of(nn.LSTM(2, 2)), first),
            (of(frozen()), trained),
            (of(nothing), "model: .* return .* got NoneType"),
            (of(apart), "model: .* gradient.* got dict"),
            (of(net, units=["0"]), r"units: expected names of modules .*, got \['0'\]"),
            (of(named, units="0"), "units: expected names .*, got '0'"),
        ],
        ValueError,
    )


# ---- communication: what the schedules say ----


def step(
    sizes: Sizes, gpu: Accelerator, ranks: int, policy: DtypePolicy = FP32, **how: Any
) -> TrainingStep:
    local, count = into_nodes(ranks, gpu)
    return TrainingStep(sizes, gpu, bytes_each(policy), local, count, **how)


def test_a_bucket_takes_what_nccl_takes_and_sends_what_a_ring_sends() -> None:
    found, right = {}, {}
    for ranks, per_node in product((1, 2, 3, 8, 16, 24), (8, 2, 1)):
        gpu = H100._replace(per_node=per_node)
        one = step(SMALL, gpu, ranks, bucket_cap_mb=1e6)  # a first bucket of 1 MiB holds all
        nbytes = 4 * SMALL.parameters
        assert len(memory.buckets(one)) == 1
        told = formulas.forecast(one, "ddp")
        found[ranks, per_node] = told["communication"], told["sent"], told["messages"]
        took = nccl.seconds("all_reduce", nbytes, one.nodes, one.local, gpu)
        sends = traffic(ring_all_reduce(ranks), nbytes // 4, 4)
        messages = int(sends.sent_messages[0])
        share = 2 * (ranks - 1) / ranks * nbytes
        right[ranks, per_node] = pytest.approx(took), pytest.approx(share, rel=1e-12), messages
    alike(found, right)


def by_schedule(one: TrainingStep, nbytes: float) -> float:
    """Seconds of an all-reduce by the library's own schedule."""
    inside = Link(one.gpu.nvlink_latency, 1 / one.gpu.nvlink)
    between = Link(one.gpu.network_latency, 1 / one.gpu.network)
    if one.nodes == 1:
        return price(ring_all_reduce(one.ranks), switch(inside))(nbytes)
    schedule = hierarchical_all_reduce(one.ranks, local=one.local)
    return price(schedule, nodes(one.local, inside, between, rails=one.local))(nbytes)


def test_on_links_that_nccl_does_not_know_a_collective_costs_what_the_schedules_cost() -> None:
    strange, found, right = H100._replace(generation="", nvlink_latency=3e-6), {}, {}
    for ranks, per_node in product((1, 2, 4, 8), (8, 2, 1)):
        gpu = strange._replace(network_latency=1e-5, per_node=per_node)
        one, nbytes = step(SMALL, gpu, ranks), 4.0 * SMALL.parameters
        took = by_schedule(one, nbytes)
        names = {"all_reduce": 1, "all_gather": 2, "reduce_scatter": 2}
        found[ranks, per_node] = [links.collective(one, name, nbytes) for name in names]
        shares = [took / parts for parts in names.values()]
        right[ranks, per_node] = pytest.approx(shares, rel=1e-12)
    alike(found, right)


def test_ranks_fill_nodes_evenly() -> None:
    splits = {(5, 8): (5, 1), (16, 8): (8, 2), (12, 8): (4, 3), (9, 8): (1, 9), (3, 1): (1, 3)}
    found = {(n, full): into_nodes(n, H100._replace(per_node=full)) for n, full in splits}
    alike(found, splits)


def test_a_strategy_sends_in_its_phase() -> None:
    """Kinds of work on the lanes, in the order in which they are launched."""
    one = step(SMALL, H100, 16, bucket_cap_mb=1e6)  # one bucket, two blocks and a root
    assert one.local == 8
    kinds = {
        name: [work.kind for work in formulas.works(one, name) if work.takes > 0]
        for name in formulas.SENDS
    }
    gather, reduce = "all-gather", "reduce-scatter"
    backward = ["forward", "backward"]
    root = [gather, gather, gather, "forward", "forward", "forward", "backward"]
    blocks = [gather, gather, "backward", reduce, "backward", reduce]
    assert kinds == {
        "single": [*backward, "update"],
        "ddp": [*backward, "all-reduce", "update"],
        "zero1": [*backward, reduce, "update", gather],
        "zero2": [*backward, reduce, "update", gather],
        "fsdp_kept": [*root, "backward", reduce, "backward", reduce, reduce, "update"],
        "fsdp": [*root, *blocks, reduce, "update"],
        "hsdp": [
            *root, gather, gather, "backward", reduce, "all-reduce", "backward", reduce,
            "all-reduce", reduce, "all-reduce", "update",
        ],
    }  # fmt: skip


def test_zero_1_averages_after_backward_and_zero_2_during_it() -> None:
    one = step(SEVEN, H100, 16, AUTOCAST)
    early = {}
    for name in ("ddp", "zero1", "zero2"):
        found = spans(formulas.works(one, name))
        backward = max(span.end for span in found if span.kind == "backward")
        sent = [span for span in found if span.kind in ("all-reduce", "reduce-scatter")]
        early[name] = sum(span.start < backward for span in sent) / len(sent)
    assert early["zero1"] == 0
    assert min(early["ddp"], early["zero2"]) > 0.75


def test_each_bucket_and_each_unit_pays_for_its_latency() -> None:
    """No tensor is split, so that a bucket is at least 25 MiB; the first is one tensor."""
    found = forecasts(SEVEN, "H100", 16, policy=replace(MIXED, gradients=torch.float32))
    one = step(SEVEN, H100, 16, AUTOCAST)
    sizes = memory.bucket_bytes(one)
    assert sum(sizes) == pytest.approx(4 * SEVEN.parameters)
    assert min(sizes[1:-1]) >= 25 * 2**20
    assert found["zero1"].memory["ends"] == pytest.approx(max(sizes))
    units = 33
    pieces = {"ddp": 2, "zero1": 2, "zero2": 2}
    for name, halves in pieces.items():
        assert found[name].messages == halves * len(sizes) * 15
    assert found["fsdp"].messages == 3 * units * 15
    assert found["fsdp_kept"].messages == 2 * units * 15
    assert found["hsdp"].messages == units * (3 * 7 + 2 * 1)
    took = [nccl.seconds("all_reduce", size, 2, 8, H100) for size in sizes]
    assert found["ddp"].communication == pytest.approx(sum(took))


@pytest.mark.claim("E7")
def test_bytes_sent_are_two_models_or_three() -> None:
    for ranks, share in ((2, 1 / 2), (8, 7 / 8), (64, 63 / 64)):
        found = forecasts(SEVEN, "H100", ranks, policy=MIXED)
        model = 2 * SEVEN.parameters * share
        times = {"ddp": 2, "zero1": 2, "zero2": 2, "fsdp_kept": 2, "fsdp": 3}
        for name, each in times.items():
            assert found[name].sent == pytest.approx(each * model, rel=1e-12)
    # Hybrid: three inside the node, and an eighth of the gradients twice between the nodes.
    hybrid = 2 * SEVEN.parameters * (3 * 7 / 8 + 2 * 7 / 8 / 8)
    assert found["hsdp"].sent == pytest.approx(hybrid, rel=1e-12)
    # By default DDP sends gradients in fp32, and FSDP gathers in bf16: 8 bytes, and 2 + 2 + 4.
    # Weights that are kept are gathered once: 2 + 4.
    each = {"ddp": 8, "zero1": 8, "zero2": 8, "fsdp": 8, "fsdp_kept": 6}
    for name, nbytes in each.items():
        sent = forecasts(SEVEN, "H100", 64)[name].sent
        assert sent == pytest.approx(nbytes * SEVEN.parameters * 63 / 64, rel=1e-12)
    assert "hsdp" not in forecasts(SEVEN, "H100", 8)
    assert "hsdp" not in forecasts(SEVEN, "H100", 12)
    assert all(each.sent == each.messages == 0 for each in forecasts(SEVEN, "H100", 1).values())


# ---- memory: what the wrappers' own layouts say ----


def test_memory_is_what_the_layouts_of_the_wrappers_take() -> None:
    sizes, found, right = Sizes.gpt(6, 512, 512, 64), {}, {}
    units = {"strategy": "fsdp", "units": [f"blocks.{number}" for number in range(6)]}
    hows: dict[str, dict[str, Any]] = {
        "ddp": {"strategy": "ddp", "gradient_as_bucket_view": True},
        "zero1": {"strategy": "zero1", "gradient_as_bucket_view": True},
        "zero2": {"strategy": "zero2"},
        "fsdp": units,
        "fsdp_kept": {**units, "reshard_after_forward": False},
    }
    for policy, ranks in product((FP32, MIXED, AUTOCAST), (2, 4)):
        with torch.device("meta"):
            net = GPT(512, 512, 6, 8, 64).to(policy.weights)  # buckets are filled by its bytes
        options = {"policy": policy, "gradient_as_bucket_view": True, "foreach": False}
        told = forecasts(sizes, "H100", ranks, batch=2, **options)
        for name, how in hows.items():
            case, kept = (name, policy.name, ranks), int(told[name].memory["activations"])
            want = predict(net, ranks, policy=policy, activations=kept, **how)
            found[case, "state"] = sum(told[name].memory[part] for part in STATE)
            right[case, "state"] = pytest.approx(want.state.total, rel=2e-3)
            cast = 2 * sizes.parameters if policy is AUTOCAST and "fsdp" not in name else 0
            always = want.parameters + want.master + want.moments
            begins = always + want.at_begin + kept + cast
            peak = max(begins, always + want.unsharded + want.gradients)
            if name == "fsdp_kept":  # weights are dropped while gradients come: never all of both
                assert begins <= told[name].peak <= 1.04 * peak, case
            elif name != "zero1":  # there it is on DDP's gradients, and here on the rank's own
                found[case, "peak"] = told[name].peak
                right[case, "peak"] = pytest.approx(peak, rel=0.04)
    alike(found, right)


def test_hybrid_sharding_shards_over_the_ranks_of_a_node() -> None:
    node, both = forecasts(SEVEN, "H100", 8)["fsdp"], forecasts(SEVEN, "H100", 32)["hsdp"]
    assert both.memory == node.memory


def test_no_batch_fits_where_the_gradients_do_not() -> None:
    sizes = SEVEN._replace(activations=1, activations_checkpointed=1, outputs=1, stream=0)
    held = forecasts(sizes, "H100", 8, policy=MIXED)["zero1"].memory
    ends = held["weights"] + held["optimizer"] + held["gradients"]
    ends += max(held["ends"], held["update"])
    for room, fits in ((ends / ROOM + 1, True), (ends / ROOM - 1, False)):
        found = forecasts(sizes, H100._replace(memory=room), 8, policy=MIXED)["zero1"]
        assert (found.largest_batch > 0) == found.fits == fits


def test_a_batch_fits_up_to_the_largest_one() -> None:
    for name in Strategy:
        largest = forecasts(SEVEN, "B200", 64)[name].largest_batch
        assert largest >= 1
        assert forecasts(SEVEN, "B200", 64, batch=largest)[name].fits
        assert not forecasts(SEVEN, "B200", 64, batch=largest + 1)[name].fits
    tight = H100._replace(memory=1e9)
    assert {each.largest_batch for each in forecasts(SEVEN, tight, 8).values()} == {0}


def test_checkpointing_trades_activations_for_operations() -> None:
    sizes = SEVENTY._replace(outputs=1)
    plain, half, again = (
        forecasts(sizes, "H100", 64, checkpointing=each)["fsdp"] for each in (False, 0.5, True)
    )
    assert again.memory["activations"] < plain.memory["activations"] / 10
    head = sizes.head / (sizes.operations + sizes.attention * (1 / H100.attention - 1))
    assert again.compute == pytest.approx((4 - head) / 3 * plain.compute)  # the head runs once
    for part in ("activations", "compute"):
        whole = [each.memory.get(part, each.compute) for each in (plain, half, again)]
        assert whole[1] == pytest.approx((whole[0] + whole[2]) / 2)


def test_autocast_keeps_the_cast_weights_and_the_stream_of_a_step() -> None:
    """As autograd counts them on a CPU: of linears their weights in bf16, of norms fp32 inputs."""
    net, ids = GPT(512, 128, 3, 4, 64), torch.zeros(2, 64, dtype=torch.long)

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(ids).flatten(0, 1)
            return nn.functional.cross_entropy(logits, ids.flatten())

    counted = saved(forward, [*net.parameters(), ids])
    sizes = Sizes.gpt(3, 128, 512, 64)
    held = memory.memory(step(sizes, H100, 2, AUTOCAST, batch=2), "zero1")
    unsaved = 2 * sizes.outputs * (2 + 4)  # the logits, and their gradients' log-probabilities
    assert held["begins"] == 2 * sizes.parameters
    assert counted == pytest.approx(held["begins"] + held["activations"] - unsaved, rel=0.03)


def test_the_optimizers_temporary_and_ddps_buckets_are_24_bytes_a_parameter_at_the_peak() -> None:
    sizes = SEVEN._replace(activations=1, activations_checkpointed=1, outputs=1, stream=0)
    for how, each in (
        ({}, 24),
        ({"gradient_as_bucket_view": True}, 20),
        ({"foreach": False}, 20),
        ({"optimizer": "momentum"}, 16),
    ):
        found = forecasts(sizes, "B200", 8, **how)["ddp"]
        assert found.peak == pytest.approx(each * sizes.parameters)
    found = forecasts(sizes, "B200", 8)["fsdp"]
    assert found.memory["update"] == pytest.approx(4 / 8 * sizes.parameters)


# ---- time ----


def test_overlap_is_between_the_longer_one_and_the_sum() -> None:
    for name, each in forecasts(SEVEN, "A100", 64).items():
        longest = max(each.compute, each.memory_traffic, each.communication)
        assert longest <= each.overlapped * (1 + 1e-12), name
        assert each.overlapped <= each.sequential * (1 + 1e-12), name
        assert 0 <= each.exposed <= each.communication * (1 + 1e-12), name


def test_the_last_bucket_and_the_root_never_hide() -> None:
    """However long a GPU computes: DDP's embedding, FSDP's first gather and last reduction.

    The first block's first matrix is ready with its norm, just before positions and embedding.
    """
    one = step(SEVEN, H100, 16, AUTOCAST, batch=64)
    *_, matrix, positions, last = (
        nccl.seconds("all_reduce", size, 2, 8, H100) for size in memory.bucket_bytes(one)
    )
    exposed = formulas.forecast(one, "ddp")["exposed"]
    assert exposed == pytest.approx(matrix + positions + last, rel=0.01)
    root, blocks = formulas.units(one, "fsdp")
    assert root
    ends = root.gather + blocks[0].gather + blocks[0].reduce + root.reduce
    assert formulas.forecast(one, "fsdp")["exposed"] == pytest.approx(ends)
    assert formulas.forecast(one, "fsdp_kept")["exposed"] == pytest.approx(ends)


def test_causal_attention_counts_half_and_runs_at_a_rate_of_its_own() -> None:
    width, layers, context = 4096, 32, 2048
    attention = 2 * layers * context * width  # operations of a token
    assert SEVEN.attention == context * attention
    multiplied = SEVEN.parameters - (context + 2 + layers * 13) * width  # no biases, no positions
    assert SEVEN.operations == context * (2 * multiplied + attention)
    slow = H100._replace(attention=0.25)
    rate = slow.flops * slow.utilization * width / (width + slow.half_width)
    forward = context * (2 * multiplied + 4 * attention) / rate
    assert compute(step(SEVEN, slow, 1)) == pytest.approx([forward, 2 * forward, 0])


def test_the_slowest_resource_binds() -> None:
    sizes = SEVEN
    assert forecasts(sizes, "H100", 8, batch=8)["fsdp"].binds == "compute"
    slow = H100._replace(network=1e9, nvlink=1e9)
    assert forecasts(sizes, slow, 8)["fsdp"].binds == "network"
    narrow = H100._replace(bandwidth=1e10)
    assert forecasts(sizes, narrow, 8)["fsdp"].binds == "memory bandwidth"


def test_the_optimizer_reads_and_writes_28_bytes_a_parameter_and_its_share_of_them() -> None:
    gpu, found, right = A100._replace(flops=1e30, bandwidth=1.0), {}, {}
    shares = {"single": 1, "ddp": 1, "zero1": 4, "zero2": 4, "fsdp": 4}
    for policy, again in product((FP32, MIXED), (False, True)):
        told = forecasts(SMALL, gpu, 4, policy=policy, checkpointing=again)
        weights = (3 + again) * policy.weights.itemsize
        case = policy.name, again
        found[case] = [told[name].memory_traffic / SMALL.parameters for name in shares]
        right[case] = pytest.approx([weights + 28 / mine for mine in shares.values()])
    alike(found, right)


def test_a_gpu_computes_while_it_reads_and_writes() -> None:
    gpu = H100._replace(bandwidth=1e10)
    one = step(SMALL, gpu, 1)
    computes, moves = compute(one), formulas.memory_traffic(one, "single")
    assert all(pair > (0, 0) for pair in zip(computes[:2], moves[:2], strict=True))
    longer = sum(max(pair) for pair in zip(computes, moves, strict=True))
    assert formulas.forecast(one, "single")["sequential"] == pytest.approx(longer)


# ---- what to run ----


@pytest.mark.claim("F1")
def test_the_simplest_strategy_that_fits_and_is_fast_is_recommended() -> None:
    assert plan(SMALL, "H100", 1).best == "single"
    gpt2 = Sizes.gpt(12, 768, 50_257, 1024)
    found = plan(gpt2, "H100", 8, batch=16)
    assert found.best == "ddp"
    assert any("single fits, but reaches only 1" in each for each in found.reasons)
    slow = H100._replace(nvlink=1e7)  # then one GPU is as good as eight
    assert plan(gpt2, slow, 8).best == "single"
    # ZeRO-2 fits where weights that are kept do, and is not recommended: PyTorch has no such thing.
    found = plan(LARGE, "H100", 8, policy=MIXED)
    assert found.forecasts["zero2"].fits
    assert found.best == "fsdp_kept"
    assert plan(SEVENTY, "H100", 64, checkpointing=True).best == "fsdp"
    far = H100._replace(network=H100.network / 80)  # where hybrid sharding wins
    for policy, kept, whole in ((MIXED, 0.59, 0.39), (AUTOCAST, 0.74, 0.56)):
        told = plan(LARGE, far, 16, batch=4, policy=policy)
        assert told.best == "hsdp"
        speed = {name: each.tokens_per_second for name, each in told.forecasts.items()}
        assert speed["fsdp_kept"] / speed["hsdp"] == pytest.approx(kept, abs=0.01)
        assert speed["fsdp"] / speed["hsdp"] == pytest.approx(whole, abs=0.01)
    found = plan(SEVEN, "H100", 8, batch=2)
    assert found.best == "fsdp_kept"
    words = "Too large for the 77.3 GB that it may take, 90% of each H100 SXM: single"
    assert words in " ".join(str(found).split())
    assert max(map(len, str(found).splitlines())) <= 80


def test_a_rate_that_no_run_was_fitted_to_is_marked() -> None:
    said = {name: "is assumed" in str(plan(SEVEN, name, 8)) for name in ACCELERATORS}
    assert [name for name, marked in said.items() if marked] == ["H800", "B300", "GB300"]
    for name, marked in said.items():
        assert any("is assumed" in each for each in search(SMALL, name, 1, 1).reasons) == marked


@pytest.mark.claim("F1")
def test_what_fits_nowhere_says_why_and_what_would_help() -> None:
    for args, how, words in (
        ((SEVEN, "A100", 1), {}, "fsdp fits on 2 ranks"),
        ((SEVENTY, "H100", 64), {}, "fits on these ranks with a micro-batch of 1 and checkp"),
        ((SEVENTY, "H100", 4), {"checkpointing": True}, "ranks"),
        ((Sizes.gpt(100, 65_536, 128_000, 8192), "H100", 1024), {}, "Tensor parallelism splits"),
    ):
        found = plan(*args, **how)  # type: ignore[arg-type]
        assert found.best is None
        assert found.reasons[0].startswith("Nothing fits: ")
        assert words in " ".join(found.reasons), found.reasons


def test_the_ranks_that_are_said_to_help_do() -> None:
    for kept in (1, 2048 * 80 * 8192):
        sizes = SEVENTY._replace(activations=kept, activations_checkpointed=kept)
        says = plan(sizes, "H100", 4, policy=FP32).reasons[1]
        ranks = int(re.findall(r"fsdp fits on ([\d,]+) ranks\.", says)[0].replace(",", ""))
        plans = [plan(sizes, "H100", n, policy=FP32) for n in (ranks - 1, ranks)]
        assert [each.forecasts["fsdp"].fits for each in plans] == [False, True]


def test_the_blocks_are_those_of_the_largest_list() -> None:
    net: Any = nn.Module()
    net.small, net.large = (nn.ModuleList(nn.Linear(n, n) for _ in range(n)) for n in (2, 3))
    net.forward = lambda x: net.large[0](x)
    found = Sizes.of(net, torch.zeros(1, 3))
    assert (found.units, found.largest_unit) == (3, 12)


def test_a_plan_of_a_module_is_that_of_its_sizes() -> None:
    with torch.device("meta"):
        net = GPT(64, 64, 2, 4, 32)
    sample = torch.zeros(1, 32, dtype=torch.long)
    assert minidist.plan(net, "H100", 2, sample=sample) == plan(Sizes.of(net, sample), H100, 2)


NAN = float("nan")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": SMALL._replace(parameters=-1)}, r"sizes.parameters must be at least 1, got -1"),
    ({"model": SMALL._replace(operations=0)}, r"sizes.operations: expected a number above 0"),
    ({"model": SMALL._replace(activations=NAN)}, r"sizes.activations: expected a finite number"),
    ({"model": SMALL._replace(units=None)}, r"sizes.units: expected a whole number, got None"),
    ({"model": SMALL._replace(units=2.5)}, r"sizes.units: expected a whole number, got 2.5"),
    ({"model": SMALL._replace(tokens=0)}, r"sizes.tokens must be at least 1, got 0"),
    (
        {"model": SMALL._replace(units=10, largest_unit=900, parameters=1000)},
        r"sizes.units: expected equal blocks of 900 .* all 1000, got 10",
    ),
    ({"checkpointing": 2}, r"checkpointing: expected a share from 0 to 1, got 2"),
    ({"hardware": H100._replace(memory="80")}, r"hardware.memory: expected a number, got '80'"),
    ({"hardware": H100._replace(flops=None)}, r"hardware.flops: expected a number, got None"),
    ({"bucket_cap_mb": None}, r"bucket_cap_mb: expected a number, got None"),
    ({"bucket_cap_mb": float("inf")}, r"bucket_cap_mb: expected a finite number"),
    ({"model": 7e9}, r"model: expected an nn.Module or Sizes, got float"),
    ({"model": nn.Linear(2, 2)}, r"sample: expected an input of the module, got None"),
    ({"hardware": "H1000"}, r"hardware: .* one of A100, H100, H800, .* got 'H1000'"),
    ({"hardware": 3}, r"hardware: expected an Accelerator or one of A100"),
    ({"hardware": H100._replace(network=0)}, r"hardware.network: .* above 0, got 0"),
    ({"hardware": H100._replace(bandwidth=-1.0)}, r"hardware.bandwidth: .* got -1.0"),
    ({"hardware": H100._replace(utilization=40)}, r"hardware.utilization: expected at most 1"),
    ({"hardware": H100._replace(per_node=0)}, r"hardware.per_node must be at least 1, got 0"),
    ({"hardware": H100._replace(nvlink_latency=-1)}, r"hardware.nvlink_latency: .* got -1"),
    ({"hardware": H100._replace(generation="volta")}, r"hardware.generation: .* got .volta."),
    ({"ranks": 0}, r"ranks must be at least 1, got 0"),
    ({"batch": -2}, r"batch must be at least 1, got -2"),
    ({"policy": "bf16"}, r"policy: expected a DtypePolicy, such as MIXED, got 'bf16'"),
    ({"bucket_cap_mb": 0}, r"bucket_cap_mb: expected a number above 0, got 0"),
    ({"optimizer": "lion"}, r"optimizer: .* one of sgd, momentum, adam, muon, got 'lion'"),
    (
        {"model": SMALL._replace(matrices=()), "optimizer": "muon"},
        r"optimizer: expected none that needs matrices that `model` lacks: 'muon'",
    ),
    ({"model": SMALL._replace(matrices=((0, 1, 1),))}, r"sizes.matrices: .* above 0, got 0"),
    ({"precision": "fp4"}, r"precision: expected bf16 or fp8 on H100 SXM, got 'fp4'"),
    ({"precision": "mxfp8"}, r"precision: expected bf16 or fp8 on H100 SXM, got 'mxfp8'"),
    (
        {"hardware": "A100", "precision": "fp8"},
        r"precision: expected bf16 on A100 SXM, got 'fp8'",
    ),
    (
        {"hardware": "B200", "precision": 8},
        r"precision: expected bf16 or fp8 or mxfp8, got 8",
    ),
]


def test_bad_input_names_the_argument() -> None:
    def asked(model: Any = SMALL, hardware: Any = "H100", ranks: Any = 2, **how: Any) -> Any:
        return plan(model, hardware, ranks, **how)

    rows: list[tuple[Callable[[], Any], str]] = [(partial(asked, **how), said) for how, said in BAD]
    rows.append((partial(Sizes.gpt, 0, 64, 64, 64), "layers must be at least 1, got 0"))
    all_refused(rows, ValueError, TypeError)
