"""Rules of grids in closed form, held against the prices of steps and against the search.

Each test names the tolerance, and a case in which its rule fails.
"""

from itertools import product
from typing import Any

import pytest

from minidist.formulas import compute, grids, inside, models, rules
from minidist.formulas.inputs import Gpu, Grid, Question, TrainingStep
from minidist.formulas.memory import memory
from minidist.formulas.step import forecast
from minidist.memory.state import AUTOCAST, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, SHAPES, SMALL, sized
from minidist.planner.planner import ROOM
from minidist.planner.sizes import Sizes

EACH = bytes_each(AUTOCAST, "adam")


def question(job: Sizes, ranks: int, samples: int, gpu: Gpu = H100, **how: Any) -> Question:
    return Question(job, gpu, EACH, ranks, samples, ROOM * gpu.memory, **how)


def step(job: Sizes, ranks: int, samples: int, gpu: Gpu = H100, **degrees: Any) -> TrainingStep:
    """A rank's step; `degrees` but that of data."""
    group = degrees.get("tensor", 1) * degrees.get("pipeline", 1) * degrees.get("context", 1)
    grid = Grid(degrees.pop("strategy", "fsdp"), ranks // group, **degrees)
    return grids.step_of(question(job, ranks, samples, gpu), grid)


def fastest(job: Sizes, ranks: int, tokens: int, **how: Any) -> Grid:
    """The grid that the search takes for so many tokens per GPU."""
    asked = question(job, ranks, ranks * tokens // job.tokens, **{"contexts": 8} | how)
    grid: Grid = grids.search(asked, 1)["best"][0]["grid"]
    return grid


# ---- tensor ----


def lost(job: Sizes, tensor: int) -> float:
    """What a sequence on a tensor group takes more than a part of an unsplit layer's compute."""
    alone, split = step(job, tensor, tensor), step(job, tensor, 1, tensor=tensor)
    whole = (3 + compute.again(alone)) * compute.passes(alone)[0]
    part = 3 * compute.passes(split)[0] + inside.tensor_parallel(split)
    return part * tensor / whole - 1


def test_in_a_node_a_tensor_degree_costs_what_the_rule_says_and_up_to_a_sixth_more() -> None:
    for name, tensor in product(SHAPES, (2, 4, 8)):
        rule = sum(rules.tensor_loss(sized(name), H100, tensor))
        assert rule <= lost(sized(name), tensor) <= 1.17 * rule, (name, tensor)
    few = sized("small", 1024)
    assert lost(few, 8) > 2 * sum(rules.tensor_loss(few, H100, 8)), "latencies, of few tokens"


@pytest.mark.claim("J1")
def test_over_two_nodes_a_byte_takes_an_eighth_longer_and_yet_twice_as_much_is_lost() -> None:
    assert rules.group_rate(H100, 8) / rules.group_rate(H100, 16) == pytest.approx(9 / 8)
    for name in ("medium", "large"):
        eight, sixteen = (sum(rules.tensor_loss(sized(name), H100, t)) for t in (8, 16))
        assert 2 < sixteen / eight < 2.2
        assert lost(sized(name), 16) == pytest.approx(sixteen, rel=0.25)
        assert 2 < lost(sized(name), 16) / lost(sized(name), 8) < 2.4


def test_the_search_widens_no_tensor_group_beyond_a_quarter_lost() -> None:
    for name, tokens in product(SHAPES, (1024, 2048, 8192)):
        most = rules.widest_tensor(sized(name), H100, 0.25)
        found = fastest(sized(name), 4096, tokens)
        assert found.tensor < 2 * most, (name, tokens, found)
    most = rules.widest_tensor(MEDIUM, H100, 0.25)
    assert fastest(MEDIUM, 64, 1024, contexts=1).tensor == 8 > 2 * most, "eight GPUs per sequence"


# ---- data ----


def test_fsdp_exposes_in_backward_what_the_tokens_missing_to_the_rule_would_compute() -> None:
    """Within a fifth, with forward's; and first gathers, last gradients of a unit and the root."""
    for name, ranks in product(("small", "medium"), (16, 64, 512)):
        count = rules.hidden_from(sized(name), H100, ranks)
        for share in (0.5, 0.8, 1.1):
            job = sized(name, round(share * count))
            now, layer = step(job, ranks, ranks), job.units * rules.layer_seconds(job, H100)
            alone = rules.hidden_from(job, H100, ranks) - job.tokens
            gather = rules.hidden_from(job, H100, ranks, strategy="fsdp_kept") - job.tokens
            rule = (2 * max(0, alone) + max(0, gather)) * layer
            left = forecast(now, "fsdp")["exposed"] - rule
            ends = 2 * (alone + job.tokens) * layer / job.units * (1 + job.rest / job.largest_unit)
            assert -0.2 * rule < left < 0.2 * rule + ends, (name, ranks, share, left, rule, ends)


@pytest.mark.claim("J2")
def test_inside_a_node_tensor_parallelism_takes_no_load_off_the_network() -> None:
    for ranks in (64, 256, 512):
        needs = {t: rules.hidden_from(LARGE, H100, ranks, t) for t in (1, 2, 4, 8, 16)}
        assert 0.88 < needs[8] / needs[1] < 1 > needs[2] / needs[1]
        assert needs[16] < 0.51 * needs[8], "two nodes share a replica's weights"
        assert rules.hidden_from(LARGE, H100, ranks, 8, 2) < 0.52 * needs[8], "so do two stages"
    many = [rules.hidden_from(MEDIUM, H100, 4096, t) for t in (1, 8)]
    assert many[1] < 0.6 * many[0], "where a ring's latencies bind, it is shorter"


# ---- pipeline ----


@pytest.mark.claim("J3")
def test_a_bubble_costs_tokens_per_gpu_however_long_the_pipeline() -> None:
    found = []
    for stages, tensor, context, interleaved, order in (
        (4, 1, 1, 1, "1f1b"), (16, 8, 1, 8, "1f1b"), (4, 2, 2, 4, "1f1b"),
        (8, 4, 1, 1, "zero_bubble"),
    ):  # fmt: skip
        group = {"tensor": tensor, "pipeline": stages, "context": context}
        now = step(LARGE, 4096, 2048, **group, interleaved=interleaved, order=order)
        share = models.bubble(stages, now.micro_batches, interleaved, order)
        rule = rules.bubble_tokens(LARGE, stages, tensor, context, interleaved, 1, order)
        assert share == pytest.approx(rule / (2048 * 8192 / 4096))
    for stages in (2, 4, 8, 16, 32, 64):
        found.append(rules.bubble_tokens(LARGE, stages, 8, interleaved=2))
    assert found[-1] / found[0] == pytest.approx(63 / 32)
    assert max(found) < 8192 / 8 / 2, "it ends at S / (T C v)"


def test_stages_per_rank_are_best_as_the_rule_says() -> None:
    """Within a factor of two, and of 2% of the time of the best that divides blocks and batch."""
    for job, ranks, samples, stages, tensor, context in (
        (MEDIUM, 4096, 512, 2, 2, 4), (MEDIUM, 512, 64, 2, 2, 4), (SMALL, 512, 64, 2, 2, 4),
        (LARGE, 16_384, 2048, 16, 4, 8), (LARGE, 16_384, 2048, 16, 8, 1),
        (LARGE, 16_384, 2048, 8, 8, 4),
    ):  # fmt: skip
        group = {"tensor": tensor, "pipeline": stages, "context": context, "strategy": "zero1"}
        takes = {}
        for each in range(1, (job.units + 2) // stages + 1):
            if job.units % (stages * each) == 0 or (job.units + 2) % (stages * each) == 0:
                now = step(job, ranks, samples, **group, interleaved=each)
                takes[each] = forecast(now, "zero1")["overlapped"]
        best = min(takes, key=takes.__getitem__)
        rule = rules.best_interleaving(job, H100, stages, tensor, context)
        assert 0.5 <= best / rule <= 2, (job.width, stages, best, rule)


def test_the_search_takes_a_pipeline_for_fewer_tokens_than_the_rule_s_border() -> None:
    """Within a factor of 1.35, among powers of two, with tensor and context of so few tokens."""
    for name, ranks in product(("small", "medium"), (64, 512, 4096, 16_384)):
        job = sized(name)
        border = rules.pipeline_pays_below(job, H100, ranks, 2, 4, 2)
        tokens = [2**power for power in range(8, 14)]
        below = max(each for each in tokens if each < border / 1.35)
        above = min(each for each in tokens if each > 1.35 * border)
        assert fastest(job, ranks, below).pipeline > 1, (name, ranks)
        assert fastest(job, ranks, above).pipeline == 1, (name, ranks)
    assert fastest(LARGE, 4096, 8192).pipeline > 1, "whatever the tokens: nothing else fits"


def test_weights_that_are_kept_fit_as_the_rule_says() -> None:
    """Within 5%, activations left out; without FSDP's few units that are on their way."""
    for job, ranks, samples, tensor, stages in (
        (LARGE, 16_384, 2048, 8, 16), (LARGE, 16_384, 2048, 4, 16), (LARGE, 4096, 2048, 8, 8),
        (MEDIUM, 4096, 2048, 2, 2), (MEDIUM, 512, 512, 1, 4),
    ):  # fmt: skip
        now = step(job, ranks, samples, tensor=tensor, pipeline=stages)
        held = memory(now, "fsdp_kept")
        rule = rules.split_to_keep(job, ranks, held["begins"] + held["always"])
        assert rule == pytest.approx(tensor * stages, rel=0.05)


def test_without_context_parallelism_the_search_finds_llama_3_s_own_grid() -> None:
    found = fastest(LARGE, 16_384, 1024, contexts=1)
    assert (found.data, found.tensor, found.pipeline, found.interleaved) == (128, 8, 16, 8)


# ---- context ----


@pytest.mark.claim("J5")
def test_a_ring_of_keys_hides_from_as_many_tokens_per_rank_as_the_rule_says() -> None:
    """Within a tenth, of long sequences; attention to 8,192 tokens is faster, and hides less."""
    for name, tensor in product(SHAPES, (1, 8)):
        rule = rules.hidden_piece(sized(name), H100, tensor)
        for piece, hides in ((0.9 * rule, False), (1.1 * rule, True)):
            job = sized(name, 256 * round(piece))
            now = step(job, 256 * tensor, 1, tensor=tensor, context=256)
            assert (inside.context_parallel(now) == 0) == hides, (name, tensor, piece)
    near = step(MEDIUM, 8, 1, context=8)
    assert inside.context_parallel(near) == 0 == rules.hidden_piece(MEDIUM, H100, near=True)


def test_what_is_left_of_a_context_degree_s_price_is_slower_attention() -> None:
    for name, context in product(SHAPES, (2, 4, 8)):
        alone, split = step(sized(name), 8, 8), step(sized(name), 8, 8, context=context)
        more = context * compute.passes(split)[0] / compute.passes(alone)[0] - 1
        assert more == pytest.approx(rules.context_loss(sized(name), H100, context))


def test_the_search_halves_sequences_down_to_the_rule_s_piece_and_then_layers() -> None:
    """Of 32,768 tokens. The search does not go below `grids.PIECE`, and memory may split more."""
    for name, tokens in product(("small", "medium"), (2048, 4096, 8192, 16_384)):
        job, context = sized(name, 32_768), 1
        while job.tokens / context > max(rules.shortest_piece(job, H100), tokens):
            context = 2 * context
        found = fastest(job, 64, tokens)
        assert job.tokens / found.context >= grids.PIECE
        if tokens < 16_384 or name == "small":
            assert found.context == context, (name, tokens, found)
        else:
            assert found.context > context, "two pieces do not fit"
        assert found.tensor == 1 or job.tokens / context == grids.PIECE
    short = fastest(MEDIUM, 64, 2048)
    assert rules.shortest_piece(MEDIUM, H100) < 8192 / short.context, "the rule would halve again"


# ---- experts ----


def mixture(hidden: int, experts: int, active: int, tokens: int = 8192) -> Sizes:
    found = models.mixture(32, 4096, hidden, 32, 8, 128_256, tokens, experts, active)
    return Sizes(**found | {name: tuple(found[name]) for name in ("before", "block", "after")})


@pytest.mark.claim("J6")
def test_tokens_travel_as_long_beside_experts_compute_whatever_they_are_and_choose() -> None:
    """Within 4%, latencies; all as popular, and of matrices as wide as the model."""
    cases = product((2048, 14_336), (2, 8), (8, 16, 64), (4096, 8192))
    for hidden, active, expert, tokens in cases:
        now = step(mixture(hidden, 64, active, tokens), 64, 64, expert=expert)
        operations = 18 * active * 4096 * hidden * tokens * 32
        share = inside.expert_parallel(now) / operations * compute.rate(H100, 4096)
        assert share == pytest.approx(rules.expert_share(H100, 4096, hidden, expert), rel=0.04)


def test_experts_that_have_few_tokens_are_as_slow_as_the_rule_says() -> None:
    for experts, expert, tokens in product((64, 128), (1, 8, 64), (1024, 8192)):
        now = step(mixture(2048, experts, 8, tokens), 64, 64, expert=expert)
        rule = rules.few_tokens_loss(tokens, experts, 8, expert)
        assert compute.slowed(now) - 1 == pytest.approx(rule, rel=1e-3)


def test_without_expert_parallelism_weights_need_as_many_times_the_tokens_to_hide() -> None:
    """Within a quarter, of E / k: attention's weights travel too, and it computes."""
    dense = mixture(2048, 8, 8)
    for experts in (32, 64, 128):
        times = rules.hidden_from(mixture(2048, experts, 8), H100, 64)
        times /= rules.hidden_from(dense, H100, 64)
        assert times == pytest.approx(experts / 8, rel=0.4)
