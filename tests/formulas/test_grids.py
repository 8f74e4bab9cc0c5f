"""Grids that are searched: against pricing each of them, against records, and where none is."""

import math
from itertools import islice, permutations, product

import pytest

from course.pages.recorded import recorded
from minidist.formulas import compute, grids, inside, models
from minidist.formulas.inputs import Grid, Question, TrainingStep
from minidist.formulas.memory import memory
from minidist.formulas.step import forecast
from minidist.memory.state import AUTOCAST, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import MEDIUM, SMALL
from minidist.planner.search import search
from minidist.planner.sizes import Sizes

EACH = bytes_each(AUTOCAST)
LIMIT = 0.9 * H100.memory
MIXTURE = Sizes(**models.mixture(8, 1024, 512, 8, 2, 32_000, 4096, 16, 2, 256))
TINY = Sizes.llama(6, 1024, 4096, 8, 2, 32_000, 4096)


def question(sizes: Sizes, ranks: int, samples: int, **more: object) -> Question:
    return Question(sizes, H100, EACH, ranks, samples, LIMIT)._replace(**more)  # type: ignore[arg-type]


QUESTIONS = {
    "small": question(SMALL, 16, 16),
    "medium on three nodes": question(MEDIUM, 24, 24, contexts=2),
    "a node of one": question(TINY, 3, 6, gpu=H100._replace(per_node=1)),
    "a prime": question(TINY, 7, 14),
    "one": question(TINY, 1, 3),
    "a mixture": question(MIXTURE, 8, 16),
    "little memory": question(TINY, 8, 16, limit=6e9),
}


def priced(asked: Question) -> list[tuple[float, Grid]]:
    """Every grid that fits, with each strategy, the fastest first."""
    found = []
    for grid in grids.variants(asked):
        step = grids.step_of(asked, grid)
        for name in grids.strategies(asked, step):
            if memory(step, name)["peak"] <= asked.limit:
                found.append((forecast(step, name)["overlapped"], grids.named(grid, name)))
    return sorted(found, key=lambda each: each[0])


@pytest.mark.parametrize("case", QUESTIONS)
def test_a_search_finds_what_pricing_every_grid_finds(case: str) -> None:
    best: dict[tuple[int, ...], float] = {}
    for seconds, grid in priced(QUESTIONS[case]):
        best.setdefault((grid.tensor, grid.pipeline, grid.context, grid.expert), seconds)
    found = grids.search(QUESTIONS[case], 5)
    assert [each["forecast"]["overlapped"] for each in found["best"]] == sorted(best.values())[:5]
    assert found["tried"] == len(grids.variants(QUESTIONS[case]))


@pytest.mark.parametrize("case", QUESTIONS)
def test_no_grid_takes_less_than_its_bound(case: str) -> None:
    for seconds, grid in priced(QUESTIONS[case]):
        step = grids.step_of(QUESTIONS[case], grid)
        assert grids.bound(step) <= seconds * (1 + 1e-9), grid
        assert grids.floor(step) <= memory(step, grid.strategy)["peak"] * (1 + 1e-9), grid


def test_what_a_step_is_spent_on_is_all_of_it() -> None:
    for asked in QUESTIONS.values():
        for seconds, grid in priced(asked)[::7]:
            step = grids.step_of(asked, grid)
            spent = grids.spent(step, grid.strategy, forecast(step, grid.strategy))
            assert sum(spent.values()) == pytest.approx(seconds)
            assert min(spent.values()) > -1e-9 * seconds, grid
            assert (spent["tensor"] > 0) == (grid.tensor > 1)
            assert (spent["recomputation"] > 0) == (grid.recompute != "none")


def in_a_node(degrees: dict[str, int], order: tuple[str, ...], per_node: int) -> tuple[int, ...]:
    """Of a rank's groups, how many of its node are in: of all replicas, context, the pipeline."""
    names, found = ("tensor", *order), []
    places = islice(product(*(range(degrees[name]) for name in reversed(names))), per_node)
    nodes = [dict(zip(reversed(names), place, strict=True)) for place in places]
    for group in (("data", "context"), ("context",), ("pipeline",)):
        others = [name for name in names if name not in group]
        found.append(sum(all(each[name] == 0 for name in others) for each in nodes))
    return tuple(found)


def test_no_other_order_of_a_mesh_has_more_of_a_group_in_a_node() -> None:
    """Of context, data and pipeline in six orders, next to tensor: two are enough."""
    kinds = ("data", "context", "pipeline")
    for sizes in product((1, 2, 4, 8), repeat=4):
        degrees = dict(zip(("tensor", *kinds), sizes, strict=True))
        asked = question(TINY, math.prod(sizes), 64)
        way = [degrees[name] for name in ("data", "tensor", "pipeline", "context")]
        tried = {
            "data": ("context", "data", "pipeline"), "pipeline": ("pipeline", "context", "data")
        }  # fmt: skip
        ours = [in_a_node(degrees, tried[each], 8) for each in grids.placings(asked, [*way, 1])]
        for order in permutations(kinds):
            other = in_a_node(degrees, order, 8)
            beaten = [
                one for one in ours
                if one[0] >= other[0]
                and one[1] >= (other[1] if other[1] == degrees["context"] else 0)
                and one[2] >= (other[2] if other[2] == degrees["pipeline"] else 0)
            ]  # fmt: skip
            assert beaten, (degrees, order)


def test_a_pipeline_in_a_node_waits_less_and_its_replicas_wait_longer() -> None:
    asked, found = question(MEDIUM, 64, 64), {}
    for nearer in ("data", "pipeline"):
        grid = Grid("fsdp_kept", 16, 1, 4, batch=1, nearer=nearer)
        step = grids.step_of(asked, grid)
        assert (step.local, step.nodes) == {"data": (8, 2), "pipeline": (2, 8)}[nearer]
        found[nearer] = grids.spent(step, grid.strategy, forecast(step, grid.strategy))
    near, far = found["pipeline"], found["data"]
    message = 8192 * MEDIUM.width * 2
    assert near["borders"] / far["borders"] == pytest.approx(
        (3.4e-6 + message / H100.nvlink) / (14e-6 + message / H100.network)
    )
    assert near["data"] > 2 * far["data"]
    on_one = grids.step_of(question(MEDIUM, 8, 8), Grid("fsdp_kept", 2, 1, 4))
    waits = models.hops(4, 4, 1, "1f1b")
    assert inside.borders(on_one) == pytest.approx(waits * (3.4e-6 + message / H100.nvlink))


def test_a_search_says_where_a_pipeline_lies() -> None:
    found = search(MEDIUM, "H100", 64, 64)
    nearer = [each for each in found.best if each.grid.nearer == "pipeline"]
    assert nearer
    assert all(" inside nodes" in str(each) for each in nearer)


def test_grids_place_all_ranks_and_all_samples() -> None:
    for asked in QUESTIONS.values():
        for grid in grids.variants(asked):
            group = grid.data * grid.tensor * grid.pipeline * grid.context
            assert group == asked.ranks
            assert grid.data * grid.context % grid.expert == 0
            assert grid.data * grid.batch * grids.micro_batches(asked, grid) == asked.samples


def test_ranks_hold_the_whole_state_of_a_mixture_among_them() -> None:
    for expert in (1, 2, 8):
        grid = Grid("fsdp", 8, expert=expert)
        held = memory(grids.step_of(QUESTIONS["a mixture"], grid), "fsdp")
        state = held["weights"] + held["gradients"] + held["optimizer"]
        assert 8 * state == pytest.approx(16 * MIXTURE.parameters, rel=1e-6)


def test_micro_batches_that_follow_each_other_take_as_often_as_long() -> None:
    """DDP exchanges gradients once, FSDP with each; one replica's rate grows with the number."""
    asked = question(SMALL, 8, 64, limit=1e12)
    found = {}
    for name, samples in product(("ddp", "fsdp", "fsdp_kept"), (8, 16, 64)):
        step = grids.step_of(asked._replace(samples=samples), Grid(name, 8))
        told = forecast(step, name)
        assert told["tokens_per_second"] * told["overlapped"] == pytest.approx(samples * 8192)
        found[name, samples] = told["communication"]
    assert found["ddp", 64] == found["ddp", 8]
    assert found["fsdp_kept", 64] == found["fsdp_kept", 8]
    assert found["fsdp", 64] == pytest.approx(8 * found["fsdp", 8])


def test_context_divides_tokens_and_state_is_shared_by_all_ranks() -> None:
    asked = question(MEDIUM, 8, 8)
    whole, cut = (grids.step_of(asked, Grid("fsdp", 8 // c, context=c)) for c in (1, 4))
    assert cut.sizes.tokens == 2048
    assert cut.batch * cut.accumulated == 4
    assert memory(cut, "fsdp")["weights"] == memory(whole, "fsdp")["weights"]
    assert 4 * cut.sizes.activations == whole.sizes.activations
    sent = 3 * 3 * cut.sizes.keys * cut.batch * 2  # three hops; once in forward, twice in backward
    assert inside.sent_inside(cut)["context"] == pytest.approx(sent)


# ---- against records ----


def test_a_tensor_degree_narrows_matrices_as_recorded() -> None:
    """A layer of each job on an H100, as one of T ranks has it: within 8%, 3% in the median."""
    layers = [
        row for row in recorded("gpu_grid")["rows"]
        if row.get("what") == "layer" and row["way"] == "bf16" and not row["checkpointed"]
    ]  # fmt: skip
    alone = {(r["width"], r["sequences"]): r["tflops"] for r in layers if r["tensor"] == 1}
    errors = []
    for row in layers:
        if row["tensor"] > 1 and row["sequences"] > 1:
            sizes = MEDIUM._replace(width=row["width"] // row["tensor"])
            step = TrainingStep(sizes, H100, EACH, tensor=row["tensor"])
            predicted = compute.narrow_rate(step) / H100.rate(row["width"])
            errors.append(predicted / (row["tflops"] / alone[row["width"], row["sequences"]]) - 1)
    errors.sort(key=abs)
    assert len(errors) == 27
    assert abs(errors[len(errors) // 2]) < 0.03
    assert abs(errors[-1]) < 0.08


def test_selective_recomputation_keeps_and_takes_what_is_recorded() -> None:
    found = {
        (row["recomputed"], row["compiled"]): row
        for row in recorded("gpu_experts")["rows"]
        if row.get("what") == "layer" and row["tokens"] == 8192 and row["sequences"] == 1
    }
    kept = (MEDIUM.activations_selective - 2 * 8192 * 4096) / MEDIUM.units * 2
    assert kept == pytest.approx(found["selective", False]["kept_bytes"], rel=0.01)
    lost = [
        3 * (found["none", how]["tflops"] / found["selective", how]["tflops"] - 1)
        for how in (False, True)
    ]  # of forward
    assert sum(lost) / 2 == pytest.approx(compute.SELECTIVE, abs=0.01)


def test_few_tokens_slow_experts_as_recorded() -> None:
    groups = [
        row for row in recorded("gpu_experts")["rows"]
        if row.get("way") == "products" and row["experts"] >= 8
    ]  # fmt: skip
    for width, hidden in ((7168, 2048), (4096, 14_336), (4096, 1536)):
        of = [row for row in groups if (row["width"], row["hidden"]) == (width, hidden)]
        most = max(row["tflops"] for row in of)
        for tokens in (256, 1024):
            part = [row["tflops"] / most for row in of if row["tokens"] == tokens]
            predicted = tokens / (tokens + compute.FEW)
            assert min(part) - 0.12 < predicted < max(part) + 0.12, (width, tokens)
