"""What the widgets compute in a browser, against the Python that it repeats, over grids."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from course.widgets import grid_slider, plan_slider, scaling
from course.widgets.borders import between
from course.widgets.checkpoints import best_interval, lost, rule_of_thumb
from course.widgets.grid import grid
from course.widgets.memory import POLICIES, bytes_each
from course.widgets.overlap import STRATEGIES, backward, gradient_bytes, send
from course.widgets.peak import peak, shape
from course.widgets.plan import MODELS
from minidist.memory.predict import STRATEGIES as WRAPPERS
from minidist.memory.predict import predict
from minidist.memory.state import share, state
from minidist.parallel.sharding.partition import MIB, assign
from minidist.planner.hardware import ACCELERATORS, H100
from minidist.planner.jobs import SMALL
from minidist.planner.planner import ROOM, plan
from minidist.planner.sizes import Sizes
from minidist.schedule.algorithms import (
    ALL_REDUCE,
    halving_doubling_all_reduce,
    ring_all_reduce,
)
from minidist.schedule.cost import Link, price, switch
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

FORMULAS = Path(__file__).parents[2] / "lib" / "course" / "widgets" / "static" / "formulas.js"
POINTS = 200
EACH = bytes_each()
ALGORITHMS = ("ring", "recursive_doubling", "halving_doubling", "tree")


@pytest.fixture(scope="module")
def formulas(browser: Browser) -> Page:  # noqa: F811
    page = new_page(browser)
    page.add_script_tag(path=FORMULAS)
    return page


def asked(page: Page, function: str, calls: list[list[Any]]) -> list[Any]:
    """The results of many calls of one function."""
    each = f"calls => calls.map((given) => minidistFormulas.{function}(...given))"
    results: list[Any] = page.evaluate(each, calls)
    return results


def numbers(value: Any) -> list[float]:
    """All numbers in a result, in order."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return [number for each in value for number in numbers(each)]
    return [value]


def compare(page: Page, function: str, cases: Iterable[tuple[list[Any], Any]]) -> None:
    """The browser's result of each call has the numbers that Python has, in their order."""
    calls, expected = zip(*cases, strict=True)
    for seen, wanted in zip(asked(page, function, [*calls]), expected, strict=True):
        right = numbers(wanted)
        assert numbers(seen) == pytest.approx(right, rel=1e-9, abs=1e-12 * max(right)), seen


def test_state_is_that_of_minidist_memory(formulas: Page) -> None:
    def cases() -> Iterator[tuple[list[Any], Any]]:
        draw = random.Random(0)
        sizes = [0, 1, 7, 10**13, *(int(10 ** draw.uniform(0, 13)) for _ in range(POINTS))]
        for size, stage in product(sizes, range(4)):
            policy, ranks = draw.choice([*POLICIES]), draw.choice([1, 2, 3, 7, 8, 1000, 65_536])
            held = share(state(size, *POLICIES[policy]), ranks, stage)
            parts = held.weights, held.gradients, held.optimizer, held.total
            yield [size, EACH[policy], ranks, stage], parts

    compare(formulas, "stateBytes", cases())


@pytest.mark.parametrize("stage", range(4))
def test_state_is_what_the_wrappers_hold(formulas: Page, stage: int) -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(1024, 4096, bias=False)
    (seen,) = asked(formulas, "stateBytes", [[1024 * 4096, EACH["fp32, Adam"], 8, stage]])
    assert seen["total"] == predict(module, 8, WRAPPERS[stage]).state.total


def links() -> list[tuple[int, float, float, float]]:
    """(ranks, bytes, alpha, beta), the corners first."""
    draw = random.Random(1)
    counts = [1, 2, 3, 4, 5, 8, 12, 24, 31, 64, 96, 100, 256]
    corners = [(65_536, 2.0**30, 1e-5, 2e-11), (65_536, 4.0, 0.0, 1e-9), (1, 4.0, 0.0, 0.0)]
    return corners + [
        (
            draw.choice(counts),
            2 ** draw.uniform(0, 36),
            draw.choice([0.0, 10 ** draw.uniform(-7, -3)]),
            10 ** draw.uniform(-12, -7),
        )
        for _ in range(POINTS)
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_prices_are_those_of_the_schedules(formulas: Page, algorithm: str) -> None:
    each = ALL_REDUCE[algorithm]
    cases = [
        ([algorithm, n, size, {"alpha": a, "beta": b}], price(each(n), switch(Link(a, b)))(size))
        for n, size, a, b in links()
    ]
    seen = asked(formulas, "price", [call for call, _ in cases])
    assert seen == pytest.approx([seconds for _, seconds in cases], rel=1e-12)


def test_the_best_changes_where_the_crossings_are(formulas: Page) -> None:
    points = [(n, a, b) for n, _, a, b in links() if n > 1 and a > 0]
    found = asked(formulas, "crossings", [[n, {"alpha": a, "beta": b}] for n, a, b in points])
    assert max(map(len, found)) == 2
    for (ranks, alpha, beta), crossings in zip(points, found, strict=True):
        link = switch(Link(alpha, beta))
        prices = {name: price(ALL_REDUCE[name](ranks), link) for name in ALGORITHMS}
        sizes = [each["nbytes"] for each in crossings]
        assert sizes == sorted(sizes)
        middles = [math.sqrt(a * b) for a, b in pairwise([1e-6, *sizes, 1e30])]
        winners = [min(prices[name](size) for name in ALGORITHMS) for size in middles]
        named = [crossings[0]["from"], *(each["to"] for each in crossings)] if crossings else []
        for name, size, least in zip(named, middles, winners, strict=False):
            assert prices[name](size) == pytest.approx(least, rel=1e-9)
        for each in crossings:
            pair = [prices[each[end]](each["nbytes"]) for end in ("from", "to")]
            assert pair[0] == pytest.approx(pair[1], rel=1e-9)
        calls = [[ranks, size, {"alpha": alpha, "beta": beta}] for size in middles]
        best = asked(formulas, "best", calls)
        assert [prices[name](size) for name, size in zip(best, middles, strict=True)] == winners


def models() -> list[tuple[list[int], float, float, int, float, float]]:
    """(sizes, seconds per byte, cap, ranks, alpha, beta)."""
    draw = random.Random(2)
    return [
        (
            [4 * int(10 ** draw.uniform(0, 7)) for _ in range(draw.randint(1, 40))],
            10 ** draw.uniform(-12, -9),
            2 ** draw.uniform(10, 30),
            draw.choice([1, 2, 3, 16, 100, 65_536]),
            draw.choice([0.0, 10 ** draw.uniform(-7, -4)]),
            10 ** draw.uniform(-12, -8),
        )
        for _ in range(POINTS)
    ]


def test_buckets_are_those_of_the_library(formulas: Page) -> None:
    grid = [(sizes, min(MIB, cap), cap) for sizes, _, cap, *_ in models()]
    assert asked(formulas, "assign", [[*each] for each in grid]) == [assign(*each) for each in grid]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_backward_pass_is_that_of_the_simulation(formulas: Page, strategy: str) -> None:
    def cases() -> Iterator[tuple[list[Any], Any]]:
        for sizes, per_byte, cap, ranks, alpha, beta in models():
            ring = price(ring_all_reduce(ranks), switch(Link(alpha, beta)))
            done = backward(sizes, per_byte, strategy, cap, ring)
            link = {"alpha": alpha, "beta": beta}
            wanted = done.end, done.travels, done.exposed
            yield [sizes, per_byte, strategy, cap, ranks, link], wanted

    compare(formulas, "overlap", cases())


def test_buckets_between_borders_travel_as_in_the_simulation(formulas: Page) -> None:
    draw, link = random.Random(8), {"alpha": 1e-5, "beta": 1e-9}

    def cases() -> Iterator[tuple[list[Any], Any]]:
        for sizes, per_byte, _, ranks, *_ in models():
            borders = [draw.randint(0, len(sizes)) for _ in range(draw.randint(0, 6))]
            buckets = between(len(sizes), borders)
            assert asked(formulas, "between", [[sizes, borders]]) == [buckets]
            seconds = price(halving_doubling_all_reduce(ranks), switch(Link(**link)))
            done = send(buckets, sizes, per_byte, seconds)
            call = [buckets, sizes, per_byte, True, "halving_doubling", ranks, link]
            yield call, (done.end, done.travels, done.exposed)

    compare(formulas, "send", cases())


def test_the_gradients_of_the_small_job_are_all_there() -> None:
    assert sum(gradient_bytes()) == 4 * SMALL.parameters


def test_a_step_of_llamas_own_grid_takes_as_long_as_llamas() -> None:
    """The paper's 41% of the peak are 6.1 s; no waiting is counted twice."""
    tokens = 2048 * 8192 / 16_384
    published = 6 * 405e9 * tokens / (0.41 * H100.flops)
    step = grid(int(405e9), 16_384, 8, 16, 2048, stage=2, chunks=8).step
    assert step == pytest.approx(published, rel=0.05)


def test_a_step_scales_as_predicted(formulas: Page) -> None:
    def cases() -> Iterator[tuple[list[Any], Any]]:
        draw, model = random.Random(3), scaling.scaling_slider().data["model"]
        grid = [(2.0**20, 1e14, 65_536, 0.0, 1e-9), (0.5, 1e14, 1, 1e-5, 1e-9)] + [
            (draw.uniform(1, 1e6), 10 ** draw.uniform(12, 16), draw.choice([1, 2, 64, 1024]), a, b)
            for _, _, a, b in links()[3:63]
        ]
        for tokens, flops, ranks, alpha, beta in grid:
            done = scaling.step(tokens, ranks, flops, Link(alpha, beta))
            link = {"alpha": alpha, "beta": beta}
            yield [model, flops, tokens, ranks, link], [*done, done.seconds]

    compare(formulas, "stepTime", cases())


def test_a_peak_is_as_predicted(formulas: Page) -> None:
    def cases() -> Iterator[tuple[list[Any], Any]]:
        draw = random.Random(4)
        sizes = [0, 1, 10**13, *(int(10 ** draw.uniform(6, 13)) for _ in range(POINTS))]
        for size, checkpoints in product(sizes, (False, True)):
            policy, tokens = draw.choice([*POLICIES]), draw.choice([0, 1, 2048, 2**31])
            own = peak(size, *POLICIES[policy], tokens, checkpoints)
            call = [size, shape(size), EACH[policy], tokens, checkpoints]
            yield call, [*own, own.total]

    compare(formulas, "peakBytes", cases())


def test_a_grid_holds_and_sends_what_is_predicted(formulas: Page) -> None:
    def cases() -> Iterator[tuple[list[Any], Any]]:
        draw, data = random.Random(5), grid_slider().data
        grids = [(0, 1, 1, 1, 1, 0, 1), (10**13, 65_536, 64, 128, 65_536, 3, 1)] + [
            (int(10 ** draw.uniform(6, 13)), t * p * 2 ** draw.randint(0, 12), t, p, 2048, stage, v)
            for t, p, stage, v in product((1, 2, 8, 16), (1, 16), range(4), (1, 8))
        ]
        for size, gpus, tensor, pipeline, sequences, stage, chunks in grids:
            own = grid(size, gpus, tensor, pipeline, sequences, stage, chunks)
            held = own.held.weights, own.held.gradients, own.held.optimizer, own.held.total
            names = "compute", "bubble", "data", "tensor", "pipeline"
            seconds = [own.seconds[name] for name in names]
            batch, place = [sequences, data["length"]], [gpus, tensor, pipeline, chunks]
            gpu = {**data["gpu"], "flops": H100.rate(max(1, round(shape(size)[1])))}
            call = [size, shape(size), data["each"], stage, place, batch, gpu]
            yield call, [own.replicas, own.micro, held, own.sent, seconds, own.step]

    compare(formulas, "gridStep", cases())


GRIDS = [(128, 16_384, 8, 16, 8), (128, 2048, 16, 4, 1), (64, 512, 8, 2, 1), (64, 64, 8, 1, 1)]
GRIDS += [(64, 32, 2, 4, 2), (16, 8, 1, 1, 1), (16, 64, 1, 1, 1), (16, 64, 2, 2, 1)]


@pytest.mark.parametrize(("blocks", "gpus", "tensor", "pipeline", "chunks"), GRIDS)
def test_a_grid_is_what_the_planner_says(
    blocks: int, gpus: int, tensor: int, pipeline: int, chunks: int
) -> None:
    """Of models whose blocks divide evenly, without latency and attention's own operations."""
    block, replicas = 12 * (128 * blocks) ** 2, gpus // tensor // pipeline
    size, length = blocks * block, grid_slider().data["length"]
    sizes = Sizes(size, blocks, block, 2 * size * length, 1, 1, 1, 128 * blocks, length)
    gpu = H100._replace(nvlink_latency=0.0, network_latency=0.0)
    micro = {"micro_batches": 16, "interleaved": chunks} if pipeline > 1 else {"batch": 16}
    found = plan(sizes, gpu, gpus, tensor=tensor, pipeline=pipeline, **micro).forecasts
    for stage, name in enumerate(("ddp", "zero1", "zero2", "fsdp")[: 3 + (pipeline == 1)]):
        right = found[name]
        own = grid(size, gpus, tensor, pipeline, 16 * replicas, stage, chunks)
        for part in ("weights", "gradients", "optimizer"):
            assert getattr(own.held, part) == right.memory[part]
        assert sum(own.sent.values()) == pytest.approx(right.sent)
        assert own.seconds["compute"] == pytest.approx(right.compute)
        assert own.seconds["bubble"] == pytest.approx(right.bubble)
        if tensor >= 8 or gpus <= 8:  # all replicas in one node, or one per node
            sends = own.seconds["data"] + own.seconds["tensor"]
            assert sends == pytest.approx(right.communication)


def test_checkpoints_lose_what_is_predicted_and_least_at_the_best_interval(formulas: Page) -> None:
    draw = random.Random(6)
    grid = [(1e6, 1.0, 100.0, 10.0), (10.0, 1e-3, 1e6, 0.0), (1.0, 600.0, 50.0, 3600.0)] + [
        tuple(10 ** draw.uniform(low, high) for low, high in ((0, 6), (-1, 3), (2, 8), (1, 4)))
        for _ in range(POINTS)
    ]
    found = [lost(*given) for given in grid]
    compare(
        formulas,
        "lostShares",
        [([*given], [*own, own.total]) for given, own in zip(grid, found, strict=True)],
    )
    assert all(0 <= own.saving <= own.total <= 1 for own in found)
    cases = [(save, mtbf) for _, save, mtbf, _ in grid]
    compare(formulas, "bestInterval", [([*case], best_interval(*case)) for case in cases])
    for save, mtbf in cases:
        best = best_interval(save, mtbf)
        if save > 1e-6 * mtbf and save < mtbf:  # else the sums have no digits for the difference
            least = lost(best, save, mtbf, 0.0).total
            assert all(lost(best * f, save, mtbf, 0.0).total > least for f in (0.9, 1.1))
        if save < 1e-4 * mtbf:
            assert best == pytest.approx(rule_of_thumb(save, mtbf), rel=0.01)


def test_a_plan_is_that_of_minidist(formulas: Page) -> None:
    draw, data = random.Random(7), plan_slider().data
    calls, plans = [], []
    for policy, checkpoints, gpu, _ in product(POLICIES, (0.0, 0.5, 1.0), ACCELERATORS, range(6)):
        sizes = data["sizes"][draw.choice([*MODELS])][draw.choice([512, 2048, 32_768])]
        link = {"network": 10 ** draw.uniform(8, 11), "per_node": draw.choice([1, 4, 8, 72])}
        own = ACCELERATORS[gpu]._replace(**link)
        ranks, batch = draw.choice([1, 2, 7, 8, 12, 16, 64, 1024]), draw.choice([1, 4, 64])
        dtypes, optimizer = POLICIES[policy]
        how = {"policy": dtypes, "optimizer": optimizer, "checkpointing": checkpoints}
        plans.append(plan(Sizes(**sizes), own, ranks, batch=batch, **how))
        sent = (
            data["strategies"],
            sizes,
            {**own._asdict(), "room": ROOM},
            ranks,
            batch,
            EACH[policy],
            checkpoints,
        )
        calls.append([*sent])
    wanted = [{name: asdict(f) for name, f in found.forecasts.items()} for found in plans]
    bubbles = {each.pop("bubble") for forecasts in wanted for each in forecasts.values()}
    assert bubbles == {0}, "the page plans without pipelines"
    compare(formulas, "plan", zip(calls, wanted, strict=True))
    assert {found.best for found in plans} == {None, *plans[-1].forecasts, "hsdp"}
    seen = asked(formulas, "plan", calls)
    best = asked(formulas, "recommended", [[each, data["close"]] for each in seen])
    assert best == [found.best for found in plans]


def test_nothing_is_ever_not_a_number(formulas: Page) -> None:
    for ranks in (1, 2, 65_536):
        for link in ({"alpha": 0, "beta": math.inf}, {"alpha": 1e-5, "beta": math.inf}):
            calls = [[name, ranks, 2**20, link] for name in ALGORITHMS]
            assert asked(formulas, "price", calls) == [0 if ranks == 1 else math.inf] * 4
            calls = [[[4, 8], 1e-9, name, 2**20, ranks, link] for name in STRATEGIES]
            for each in asked(formulas, "overlap", calls):
                assert each["exposed"] == (0 if ranks == 1 else math.inf)
