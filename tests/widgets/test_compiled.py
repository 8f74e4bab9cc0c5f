"""The library's Python in the page: faithful, refused where it would not be, and alone there."""

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from course.interactive import compiled, in_page
from course.interactive.searching import JOBS, ORDERS
from course.interactive.sliders import MODELS, POLICIES, counts
from course.timing.backward import by_way
from minidist.formulas import links, memory, models, nccl, step
from minidist.formulas.inputs import Each, Gpu, TrainingStep
from minidist.memory.state import bytes_each
from minidist.planner.hardware import ACCELERATORS, H100
from minidist.planner.jobs import LARGE
from minidist.planner.planner import plan
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

STATIC = Path(compiled.__file__).parent / "static"
DRAWN = ("sliders.js", "bars.js", "curves.js", "timelines.js", "searches.js")


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:  # noqa: F811
    page = new_page(browser)
    page.add_script_tag(content=compiled.script())
    return page


def plain(value: Any) -> Any:
    """A value as JSON has it: records as objects, no functions and no infinity."""
    if isinstance(value, Each | Gpu):
        return value._asdict()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if hasattr(value, "__dict__"):
        return plain(vars(value))
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# In a page each call is of fresh objects, as JSON brings them.
ASK = """([module, name, calls]) => {
  const plain = (value) =>
    value === Infinity ? "inf"
      : Array.isArray(value) ? value.map(plain)
        : value && typeof value === "object"
          ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]))
          : value;
  return calls.map((given) => plain(minidistModules[module][name](...given)));
}"""


def same(seen: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return seen.keys() == right.keys() and all(same(seen[key], right[key]) for key in right)
    if isinstance(right, list):
        return len(seen) == len(right) and all(map(same, seen, right))
    if isinstance(right, float):
        return bool(seen == pytest.approx(right, rel=1e-12, abs=1e-18))
    return bool(seen == right)


def compare(page: Page, function: Callable[..., Any], calls: list[list[Any]]) -> None:
    """The page's result of each call is Python's."""
    question = [function.__module__, function.__name__, plain(calls)]
    for seen, given in zip(page.evaluate(ASK, question), calls, strict=True):
        right = plain(function(*given))
        assert same(seen, right), (function.__name__, given)


def settings(count: int) -> Iterator[tuple[list[Any], int, Gpu, Each, int]]:
    """A model, tokens of a sequence, a GPU, bytes of a parameter, and ranks."""
    draw = random.Random(count)
    for _ in range(count):
        some = [round(10 ** draw.uniform(8, 13))]
        model = draw.choice([some, *(list(shape) for shape in MODELS.values())])
        gpu = draw.choice([*ACCELERATORS.values()])._replace(network=draw.choice([1.25e9, 5e10]))
        each = bytes_each(*draw.choice([*POLICIES.values()]))
        yield model, 1 << draw.randint(8, 14), gpu, each, draw.choice([1, 8, 12, 16, 24, 64, 1024])


def steps(count: int) -> list[TrainingStep]:
    caps = random.Random(count)
    return [in_page.training(*each, 2 ** caps.uniform(-3, 9)) for each in settings(count)]


def test_prices_are_python_s(page: Page) -> None:
    draw = random.Random(0)
    gpus = [*ACCELERATORS.values()]
    names = ["all_reduce", "all_gather", "reduce_scatter"]
    collectives = [
        [draw.choice(names), 2 ** draw.uniform(0, 36), draw.choice([1, 2, 3, 16]),
         draw.choice([1, 2, 8]), draw.choice(gpus)]
        for _ in range(60)
    ]  # fmt: skip
    compare(page, nccl.choices, collectives)
    curve = [(2.0**bit, 1e-5 + 2.0**bit / 1e11) for bit in range(10, 33)]
    compare(page, links.measured, [[curve, 2 ** draw.uniform(5, 36)] for _ in range(30)])
    compare(page, in_page.sized, [[model, tokens] for model, tokens, *_ in settings(30)])
    whole = [[draw.randint(0, 10**13), each, ranks, stage] for _, _, _, each, ranks in settings(9)
             for stage in range(4)]  # fmt: skip
    compare(page, memory.state, whole)


@pytest.mark.parametrize("strategy", step.SENDS)
def test_steps_are_python_s(page: Page, strategy: str) -> None:
    asked = [[each, strategy] for each in steps(12)]
    compare(page, memory.memory, asked)
    compare(page, step.forecast, asked)
    compare(page, step.traffic, asked)


def test_what_sliders_ask_is_python_s(page: Page) -> None:
    draw = random.Random(1)
    plans = [
        [model, tokens, gpu, each, ranks * 128, draw.choice([1, 4]), draw.choice([0.0, 0.5, 1.0]),
         0.9 * gpu.memory, draw.choice([[1, 1, 1, 1], [8, 1, 1, 1], [8, 16, 32, 2]])]
        for model, tokens, gpu, each, ranks in settings(12)
    ]  # fmt: skip
    compare(page, in_page.planned, plans)
    for given in plans:
        found = in_page.planned(*given)
        compare(page, step.recommended, [[found, given[-1][1], 0.95]])
        compare(page, in_page.dimensions, [[found, name] for name in found if name != "single"])
        compare(page, in_page.largest, [[each["memory"]] for each in found.values()])
    ways = [in_page.training(*each) for each in settings(6)]
    compare(page, by_way, [[each, way] for each in ways for way in ("naive", "overlapped")])
    compare(page, in_page.ways, [[each] for each in ways])
    for each in ways:
        many = len(models.tensors(each.sizes))
        borders = [draw.randint(0, many) for _ in range(5)]
        compare(page, in_page.bordered, [[each, borders]])
    scaled = [[model, 256, draw.choice([1, 16]), gpu, each, ranks, 64]
              for model, _, gpu, each, ranks in settings(10)]  # fmt: skip
    compare(page, in_page.scaled, scaled)


def test_a_search_is_python_s(page: Page) -> None:
    draw = random.Random(3)
    jobs = [*map(list, JOBS.values())]
    asked: list[list[Any]] = []
    for job in (*jobs, *jobs):
        gpu = draw.choice([*ACCELERATORS.values()])
        each = bytes_each(*draw.choice([*POLICIES.values()]))
        ranks, samples = draw.choice([8, 64, 512, 4096]), draw.choice([8, 12, 768, 4096])
        tokens, orders = 1 << draw.randint(11, 17), draw.choice([*ORDERS.values()])
        asked.append([job, tokens, gpu, each, ranks, samples, 0.9 * gpu.memory, orders])
    compare(page, in_page.searched, asked)
    found = [in_page.searched(*given) for given in asked]
    assert {bool(each["best"]) for each in found} == {True, False}


def test_prices_of_schedules_and_of_failures_are_python_s(page: Page) -> None:
    draw = random.Random(2)
    links_ = [[counts(draw.choice([2, 3, 12, 64, 100])), 10 ** draw.uniform(-7, -3),
               10 ** draw.uniform(7, 12)] for _ in range(40)]  # fmt: skip
    compare(page, in_page.crossings, links_)
    sized = [[each, 2 ** draw.uniform(0, 34), *link] for each, *link in links_]
    compare(page, in_page.best, sized)
    for each, alpha, bandwidth in links_:  # the best changes at a crossing, and nowhere else
        edges = [1e-6, *(at for at, *_ in in_page.crossings(each, alpha, bandwidth)), 1e30]
        names = [to for *_, to in in_page.crossings(each, alpha, bandwidth)]
        middles = [math.sqrt(low * high) for low, high in pairwise(edges)][1:]
        assert [in_page.best(each, at, alpha, bandwidth) for at in middles] == names
    runs = [[10 ** draw.uniform(0, 6), 10 ** draw.uniform(-1, 3), 10 ** draw.uniform(2, 8), 60.0]
            for _ in range(40)]  # fmt: skip
    compare(page, in_page.lost, runs)
    compare(page, in_page.best_interval, [run[1:3] for run in runs])


def test_the_dimensions_of_a_grid_are_the_plan_s() -> None:
    """And its bytes by hand: eight halves of an all-reduce per layer and step.

    Replicas send 8 bytes per parameter, or 6 if they gather in bf16.
    """
    shape, each, gpu = MODELS["Llama 3.1 405B"], bytes_each(*POLICIES["autocast, Adam"]), H100
    how = [gpu, each, 16_384, 1, 0.0, 0.9 * gpu.memory, [8, 16, 16, 8]]
    found = in_page.planned([*shape], 8192, *how)
    split = {"tensor": 8, "pipeline": 16, "micro_batches": 16, "interleaved": 8}
    right = plan(LARGE, H100, 16_384, **split).forecasts
    for name in right:
        own = in_page.dimensions(found, name)
        assert own["seconds"]["bubble"] == right[name].bubble
        both = own["seconds"]["data"] + own["seconds"]["tensor"]
        assert both == pytest.approx(right[name].communication)
        assert sum(own["sent"].values()) == pytest.approx(right[name].sent)
        each_ = {"single": 0, "fsdp_kept": 6}.get(name, 8)
        replicas = each_ * 8 * LARGE.largest_unit / 8 * 127 / 128
        assert own["sent"]["data"] == pytest.approx(replicas)
        hidden = 2 * 16 * 8192 * 16_384  # bytes of a step's activations between two layers
        assert own["sent"]["pipeline"] == pytest.approx(2 * 8 * hidden / 8)
        assert own["sent"]["tensor"] == pytest.approx(8 * math.ceil(126 / 16) * hidden * 7 / 8)


# Results that PScript alone gets wrong: the script's are Python's.
MENDED = """
def f(n):
    found = [round(2.5), round(-1.5), sum([])]
    for i in range(n):
        found.append(i)
        n = 0
        i = 9
    return found
"""


def test_what_can_be_mended_is(page: Page) -> None:
    page.evaluate("() => { delete globalThis.minidistModules; }")
    page.add_script_tag(content=compiled.joined({"a": MENDED}))
    known: dict[str, Any] = {}
    exec(MENDED, known)
    right = json.loads(json.dumps(known["f"](3)))
    assert page.evaluate("() => minidistModules.a.f(3)") == right == [2, -2, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("g(1, b=2)", "a keyword argument"),
        ("max(xs, key=g)", "a keyword argument"),
        ("sorted(xs)", "sorted()"),
        ("xs.sort()", "sort(), which compares texts"),
        ("[c for d, (c, e) in enumerate(xs)]", "a nested target"),
        ("a | b", "an operation on bits"),
        ("xs[i - 1]", "an index that may be negative"),
        ("{1: 2}", "a key that is no text"),
        ("f'{a:.2f}'", "a format"),
        ("divmod(a, b)", "divmod()"),
        ("a % b", "a remainder or a format"),
        ("[c for c in xs if xs]", "a test of what may be empty"),
        ("xs and 1", "a test of what may be empty"),
        ("[a for a in xs if a > 2]", "a comprehension's name that also stands for something else"),
        ("[[c for c in xs] for c in xs]", "a comprehension's name that also stands for"),
        ("[a, b] < xs", "an order of lists"),
    ],
)
def test_what_cannot_be_mended_is_refused_by_name_and_line(code: str, fault: str) -> None:
    whole = f"def g(a, b, i, xs):\n    return {code}\n"
    with pytest.raises(
        SyntaxError, match=re.escape(f"some.module, line 2: a page cannot run {fault}")
    ):
        compiled.compiled("some.module", whole)


@pytest.mark.parametrize(
    ("whole", "fault"),
    [
        ("def g(xs):\n    xs += [1]\n", "line 2: a page cannot run an assignment in place"),
        ("def g(xs):\n    while xs:\n        xs.pop()\n", "line 2: a page cannot run a test"),
        ("def g(xs=[]):\n    return xs\n", "a default that can change"),
        ("def g(xs):\n    del xs[0]\n", "line 2: a page cannot run delete"),
        ("def g():\n    return other(1)\n", "a page does not know the name other"),
    ],
)
def test_functions_that_a_page_would_misread_are_refused(whole: str, fault: str) -> None:
    with pytest.raises(SyntaxError, match=re.escape(fault)):
        compiled.compiled("some.module", whole)


@pytest.mark.parametrize("name", DRAWN)
def test_scripts_only_draw(name: str) -> None:
    """They name no rate, and multiply none of a step's numbers."""
    script = (STATIC / name).read_text()
    fields = "flops|network|nvlink|utilization|half_width|gradients|moments|operations"
    assert not re.findall(rf"\b(?:{fields})\b\s*[*/]|[*/]\s*[\w.]*\b(?:{fields})\b", script)
