"""Lanes over time: what Python has simulated for them, and what a browser makes of it."""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from course.chapters.ddp import widgets as borders
from course.chapters.disagree import straggler
from course.chapters.fsdp import widgets as prefetch
from course.interactive.in_page import bordered
from course.interactive.page import Slider, seconds_text
from course.pages.price import ask, step_of
from course.widgets import borders_slider, prefetch_slider, straggler_slider
from minidist.formulas.inputs import TrainingStep
from minidist.formulas.memory import gradient_bytes
from minidist.formulas.models import root
from minidist.planner.jobs import SMALL
from minidist.schedule.lanes import busy, end, spans
from minidist.schedule.steps import Unit, sharded
from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import DESK, PHONE, Pages, pages  # noqa: F401 (a fixture)

SLIDERS = {
    "straggler": straggler_slider(),
    "borders": borders_slider(),
    "prefetch": prefetch_slider(),
}
NONSENSE = re.compile(r"NaN|undefined|Infinity|null|-\d")
STEPS = {tokens: step_of("small", borders.GPUS, tokens) for tokens in borders.TOKENS}
SIZES = gradient_bytes(STEPS[borders.BEGIN])


def all_of_them() -> str:
    return "".join(each._repr_html_() for each in SLIDERS.values())


# ---- what was simulated ----


@pytest.mark.parametrize("slow", range(straggler.RANKS))
def test_all_wait_for_the_slow_rank_and_it_waits_for_none(slow: int) -> None:
    ranks = straggler.run(slow, straggler.SLOW)
    waits = [[part for part in own if part.kind == straggler.WAITS] for own in ranks]
    assert waits[slow] == []
    assert all(len(each) == 1 for rank, each in enumerate(waits) if rank != slow)
    assert {own[-1].end for own in ranks} == {straggler.MOST}
    assert {own[-1].end for own in straggler.run(slow, straggler.FINE)} == {
        straggler.MOST - (straggler.SLOWER - 1) * straggler.COMPUTE
    }


@pytest.mark.parametrize("dead", range(straggler.RANKS))
def test_ranks_stop_one_after_the_other_the_further_they_are_from_the_dead(dead: int) -> None:
    ranks = straggler.run(dead, straggler.DEAD)
    dies = ranks[dead][-1].start
    for rank, (*_, last) in enumerate(ranks):
        away = min((rank - dead) % straggler.RANKS, (dead - rank) % straggler.RANKS)
        if rank != dead:
            assert (last.kind, last.end) == (straggler.WAITS, straggler.MOST)
            assert (last.about - rank) % straggler.RANKS in (1, straggler.RANKS - 1), (
                "it waits for a neighbor"
            )
            assert last.start == dies + straggler.MESSAGE * min(away, 2)


def test_the_diagnosis_is_the_library_s() -> None:
    dead, slow, fine = (
        straggler.run(2, what) for what in (straggler.DEAD, straggler.SLOW, straggler.FINE)
    )
    assert straggler.diagnosis(dead, straggler.MOST).startswith(
        "rank 2 is gone after all_reduce #1: "
    )
    assert "it is not done" in straggler.diagnosis(dead, straggler.COMPUTE)
    came = straggler.diagnosis(slow, straggler.COMPUTE)
    assert came == "rank 2 has not come to all_reduce #1: it is in train_step at train.py:21"
    assert "it is not done" in straggler.diagnosis(slow, straggler.SLOWER * straggler.COMPUTE)
    for ranks in (slow, fine):
        assert straggler.diagnosis(ranks, straggler.MOST).startswith("no rank waits")


def exposed(step: TrainingStep, places: Iterable[int]) -> float:
    late: float = bordered(step, [*places])["exposed"]
    return late


@pytest.mark.parametrize("tokens", [200, 1000, 4000])
def test_no_borders_are_better_than_the_best(tokens: int) -> None:
    draw = random.Random(tokens)
    block = [draw.randint(10**6, 10**8) for _ in range(3)]
    step = step_of("small", borders.GPUS, tokens)
    sizes = step.sizes._replace(
        units=2, parameters=2 * sum(block) + 10**6, block=block, before=[10**6], after=[]
    )
    step = replace(step, sizes=sizes)
    count = len(gradient_bytes(step))
    best = borders.best_borders(step)
    least = exposed(step, best)
    for several in range(count):
        for others in combinations(range(1, count), several):
            late_ = exposed(step, others)
            assert late_ >= least - 1e-12
            assert several >= len(best) or late_ > least + 1e-12, "with fewer it is worse"


def test_the_best_of_the_small_job_is_hardly_better_than_ddp_s_if_compute_is_long() -> None:
    found = borders_slider().data["best"]
    assert isinstance(found, dict)
    for tokens, best in found.items():
        ddp = ask("exposed", gpus=borders.GPUS, tokens=tokens)
        ratio = ddp / exposed(STEPS[tokens], best)
        assert ratio == pytest.approx(1, abs=0.05) if tokens >= 4096 else ratio > 1.2, (
            tokens,
            ratio,
        )


def test_the_gradients_of_the_small_job_are_all_there() -> None:
    assert sum(SIZES) == 4 * SMALL.parameters


def test_prefetch_is_the_rule_of_the_page() -> None:
    """Two units at most, one of them on its way; more ahead takes memory and gains nothing."""
    step = prefetch.fewer_units()
    all_of = {name: prefetch.lanes(step, ahead) for name, ahead in prefetch.AHEAD.items()}
    rest, unit = root(step.sizes), step.sizes.largest_unit
    weights = [max(now.weights for now in prefetch.held(each, step)) for each in all_of.values()]
    assert weights == [2 * (rest + count * unit) for count in (1, 2, 2, 2, 3)]
    took = [end(each) for each in all_of.values()]
    assert took[0] > took[1] > took[3]
    assert took[0] > took[2] > took[3] == pytest.approx(took[4])
    both = all_of[prefetch.BEGIN]
    lasts = {(span.kind, span.text): span.end - span.start for span in both}
    gathered = [lasts["all-gather", "root"], lasts["all-gather", "0"], lasts["all-gather", "3"]]
    late = gathered[2] - lasts["backward", "root"]  # which it begins with
    reduced = [lasts["reduce-scatter", "0"], lasts["reduce-scatter", "root"]]
    waits = gathered[0] + gathered[1] + late + sum(reduced)
    assert took[3] == pytest.approx(busy(both, "compute") + waits)


def test_memory_by_hand() -> None:
    """2 s for a gather of 2 bytes, 2 and 4 s of compute, 4 s for a reduce-scatter of 4 bytes."""
    step = step_of("small", 8, 2048)
    sizes = step.sizes._replace(parameters=2, units=2, largest_unit=1)
    found = spans(sharded(None, [Unit(2, 4, 2, 4)] * 2, [0, 0]))
    assert [tuple(now) for now in prefetch.held(found, replace(step, sizes=sizes))] == [
        (0, 2, 0),  # unit 0, on its way; from 4 on unit 1; from 8 on unit 1 again
        (10, 2, 4),  # it computes backward
        (14, 0, 4),
        (18, 2, 0),  # its gradients have left, and unit 0 may come
        (20, 2, 4),
        (24, 0, 4),
        (28, 0, 0),
    ]


# ---- what a browser makes of it ----


@pytest.fixture(scope="module")
def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: F811
    """All of them on one page, which the tests share."""
    pages = Pages(browser, tmp_path_factory.mktemp("desk"))  # noqa: F811
    yield pages.open(all_of_them())
    assert pages.errors == []


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"figure[data-widget={name}]")


def said(page: Page, name: str) -> str:
    return figure(page, name).get_by_role("status").inner_text()


PARSED = """([figure, still]) => {
  const box = document.createElement("div");
  box.innerHTML = still;
  const [drawn, was] = [figure.querySelector(".lanes"), box.querySelector(".lanes")];
  return [drawn, was].map((lanes) => lanes.innerHTML.replace(/<u .*<.u>/, ""));
}"""


@pytest.mark.parametrize("name", SLIDERS)
def test_a_browser_draws_what_python_has_drawn(name: str, pages: Pages) -> None:  # noqa: F811
    page = pages.open(SLIDERS[name]._repr_html_())
    drawn, was = page.evaluate(PARSED, [figure(page, name).element_handle(), SLIDERS[name].still])
    assert drawn == was
    words = SLIDERS[name].still.split("<p>")[-1].split("</p>")[0]
    if name == "borders":
        assert said(page, name) == words.replace("&#x27;", "'")


@pytest.mark.parametrize("slider", SLIDERS.values(), ids=SLIDERS)
def test_it_is_light_and_reads_without_a_script(
    slider: Slider,
    pages: Pages,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINIDIST_BOOK", "1")
    assert len(slider._repr_html_().encode()) < 10_000
    page = pages.open(slider._repr_html_(), java_script_enabled=False)
    picture = page.get_by_role("img")
    expect(picture).to_be_visible()
    label = picture.get_attribute("aria-label")
    assert label
    expect(page.get_by_text(label)).to_be_visible()


def test_slow_or_kill_a_rank_by_keys_and_see_who_waits(desk: Page) -> None:
    own = figure(desk, "straggler")
    assert "260 ms: rank 0 waits for rank 1; ranks 1 and 3 wait for rank 2; rank 2 is dead" in (
        said(desk, "straggler")
    )
    assert "diagnose says: “rank 2 is gone after all_reduce #1: it was killed" in said(
        desk, "straggler"
    )
    own.get_by_label("Which rank").select_option("rank 4")
    assert "ranks 3 and 5 wait for rank 4" in said(desk, "straggler")
    own.get_by_label("How it is").select_option(straggler.SLOW)
    assert said(desk, "straggler").startswith("260 ms: ranks 0, 1, 2, 3, 4 and 5 have the sum.")
    time = own.get_by_label("Time", exact=True)
    time.press("Home")
    for _ in range(7):
        time.press("ArrowRight")
    expect(time).to_have_attribute("aria-valuetext", "70 ms")
    assert "rank 4 computes" in said(desk, "straggler")
    assert "“rank 4 has not come to all_reduce #1: it is in train_step" in said(desk, "straggler")
    assert "rank 0 waits for rank 5; rank 1 waits for rank 0" in said(desk, "straggler")
    time.press("ArrowLeft")
    time.press("ArrowLeft")
    assert "ranks 0, 1 and 2 are in step 2 of 10" in said(desk, "straggler")
    time.press("ArrowRight")
    time.press("ArrowRight")
    expect(own.locator(".lanes p")).to_contain_text(["rank 0 · waits 110 ms", *[""] * 5])
    own.get_by_label("How it is").select_option(straggler.FINE)
    assert "ranks 0, 1, 2, 3, 4 and 5 are in step 4 of 10" in said(desk, "straggler")


def exposed_ms(page: Page) -> list[str]:
    """What is exposed with the reader's buckets, with DDP's, and at best."""
    notes = figure(page, "borders").locator(".lanes p").all_inner_texts()
    return [found[1] for note in notes if (found := re.search(r"· ([\d.]+ ms) exposed", note))]


def test_borders_are_moved_by_keys_and_the_price_follows(desk: Page) -> None:
    own = figure(desk, "borders")
    start = SLIDERS["borders"].data["borders"]["start"]  # type: ignore[index]
    last = own.get_by_label("Border 5 of 5")
    places = [*start]
    for key, by in (("ArrowRight", 1), ("PageUp", 9), ("ArrowLeft", -1), ("PageUp", 9)):
        last.press(key)
        places[4] += by
        expect(last).to_be_focused()
        expect(last).to_have_attribute("aria-valuetext", re.compile(f"^after {places[4]} of 254"))
        late_ = exposed(STEPS[borders.BEGIN], places)
        assert exposed_ms(desk)[0] == seconds_text(late_)
    last.press("End")
    own.get_by_label("Border 4 of 5").press("End")
    late_ = exposed(STEPS[borders.BEGIN], places[:3])
    assert exposed_ms(desk)[0] == seconds_text(late_)
    assert f"waits {seconds_text(late_)} for your 4 buckets, 8.05 ms for DDP's 141" in (
        said(desk, "borders")
    )
    own.get_by_label("Tokens per GPU").press("Home")
    best = exposed(STEPS[1024], borders.best_borders(STEPS[1024]))
    ddp = ask("exposed", gpus=borders.GPUS, tokens=1024)
    assert exposed_ms(desk)[1:] == [seconds_text(ddp), seconds_text(best)]


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_border_is_dragged_to_where_the_pointer_is(width: int, pages: Pages) -> None:  # noqa: F811
    page = pages.open(SLIDERS["borders"]._repr_html_(), width)
    bars = figure(page, "borders").locator(".lane.buckets i")
    edge, thumb = bars.nth(2).bounding_box(), page.get_by_label("Border 2 of 5").bounding_box()
    assert edge
    assert thumb
    height = thumb["y"] + thumb["height"] / 2
    page.mouse.move(edge["x"], height)  # a thumb stands above its border
    page.mouse.down()
    page.mouse.move(edge["x"] + 0.3 * edge["width"], height, steps=5)
    page.mouse.up()
    moved = bars.nth(2).bounding_box()
    assert moved
    largest = max(SIZES[1:]) / sum(SIZES) * thumb["width"]  # it stops between two gradients
    assert moved["x"] == pytest.approx(edge["x"] + 0.3 * edge["width"], abs=largest / 2 + 3)


def test_time_and_memory_are_linked(desk: Page) -> None:
    own = figure(desk, "prefetch")
    time, line = own.get_by_label("Time", exact=True), own.locator(".lanes u")
    time.press("Home")
    assert "At 0 ms the GPU waits, the network does the all-gather of the root and 2.1 GB" in (
        said(desk, "prefetch")
    )
    own.get_by_label("Prefetch").select_option("no prefetch")
    assert "The step takes 371 ms, 1.78 times its compute" in said(desk, "prefetch")
    picture = own.locator(".lanes")
    box, tall = picture.bounding_box(), own.locator(".lane.tall").bounding_box()
    assert box
    assert tall
    desk.mouse.move(tall["x"] + tall["width"] / 2, tall["y"] + 5)  # on the memory
    expect(time).to_have_attribute("aria-valuetext", "185 ms")
    assert "the network does the all-gather of unit 2" in said(desk, "prefetch")
    long = line.bounding_box()
    assert long
    assert long["x"] == pytest.approx(box["x"] + box["width"] / 2, abs=3)
    assert long["y"] == pytest.approx(box["y"])
    assert long["y"] + long["height"] >= tall["y"] + tall["height"] - 3  # through both
    time.press("End")
    assert "the step is over" in said(desk, "prefetch")


OVER = """figure => [...figure.querySelectorAll(".lanes *")].filter((node) => {
  const [own, all] = [node, figure].map((it) => it.getBoundingClientRect());
  return own.width && own.left < all.left - 1 || own.right > all.right + 1;
}).map((node) => node.outerHTML)"""


def test_every_choice_makes_sense_on_a_phone_at_night_and_axe_finds_nothing(
    pages: Pages,  # noqa: F811
) -> None:
    page = pages.open(all_of_them(), PHONE, "dark")
    for name in SLIDERS:
        own = figure(page, name)
        for select in own.locator("select").all():
            for option in select.locator("option").all_inner_texts():
                select.select_option(option)
                for key in ("Home", "End"):
                    own.locator("input[type=range]").last.press(key)
                    assert not NONSENSE.search(said(page, name))
                    assert not NONSENSE.search(own.locator(".lanes").inner_html())
        assert own.evaluate(OVER) == []
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
