"""Sliders: what Python writes, and what a browser makes of it."""

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Locator, Page, expect

from course import widgets
from course.interactive.page import SCRIPTS, Slider, assets, scaled, seconds_text
from course.interactive.sliders import YEAR
from course.pages.price import ask, step_of
from minidist.formulas.memory import memory
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, SMALL
from minidist.planner.planner import plan
from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import PHONE, Pages, pages  # noqa: F401 (a fixture)

SLIDERS = {
    "state": widgets.state_slider(),
    "alone": widgets.state_slider(3.2e9, alone=True),
    "curves": widgets.curves_slider(),
    "overlap": widgets.overlap_slider(),
    "scaling": widgets.scaling_slider(),
    "peak": widgets.peak_slider(),
    "grid": widgets.grid_slider(),
    "checkpoints": widgets.checkpoint_slider(),
    "plan": widgets.plan_slider(),
    "search": widgets.search_slider(),
}
NONSENSE = re.compile(r"NaN|undefined|Infinity|null")


def nbytes_text(nbytes: float) -> str:
    return scaled(nbytes, "B", [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")])


def html(slider: Slider) -> str:
    return slider._repr_html_()


def all_of_them() -> str:
    return "".join(map(html, SLIDERS.values()))


@pytest.fixture(scope="module")
def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: F811
    """All sliders on one page, which the tests share."""
    pages = Pages(browser, tmp_path_factory.mktemp("desk"))  # noqa: F811
    yield pages.open(all_of_them())
    assert pages.errors == []


RESET = """figure => {
  const { controls } = JSON.parse(figure.querySelector("script").textContent);
  figure.querySelectorAll(".knobs :is(input, select)").forEach((knob, at) => {
    knob.value = controls[at].index;
    knob.dispatchEvent(new Event("input"));
  });
}"""


def fresh(page: Page, name: str) -> Locator:
    """The figure with this name, as it starts."""
    figure = page.locator("figure").nth([*SLIDERS].index(name))
    figure.evaluate(RESET)
    return figure


def turn(figure: Locator, label: str, to: str | int) -> str:
    """Set a list by its text, or a slider to one of its places, counted from the end if negative.

    Returns what is said then.
    """
    control = figure.get_by_label(re.compile(f"^{label}"))
    if isinstance(to, str):
        control.select_option(to)
    else:
        most = int(control.get_attribute("max") or 0)
        control.fill(str(to if to >= 0 else most + 1 + to))
    return expect_sense(figure)


def expect_sense(figure: Locator) -> str:
    """No number is none, in words and coordinates, and nothing sticks out; what is said."""
    assert not NONSENSE.search(figure.evaluate("it => it.querySelector('.picture').innerHTML"))
    text = figure.locator(".said").inner_text()
    assert text
    assert not NONSENSE.search(figure.inner_text())
    outside = """svg => [...svg.querySelectorAll("rect, text, circle")].filter((node) => {
      if (node.closest("defs")) return false;
      const [own, all] = [node, svg].map((it) => it.getBoundingClientRect());
      return own.left < all.left - 1 || own.right > all.right + 1 || own.bottom > all.bottom + 3;
    }).map((node) => node.outerHTML)"""
    for svg in figure.locator("svg").all():
        assert svg.evaluate(outside) == []
    return text


def test_a_terminal_gets_a_line_and_a_page_without_scripts_a_sentence(pages: Pages) -> None:  # noqa: F811
    page = pages.open(all_of_them(), java_script_enabled=False)
    expect(page.get_by_text("where scripts may run")).to_have_count(len(SLIDERS))
    for slider in SLIDERS.values():
        assert all(control.texts[control.place] in repr(slider) for control in slider.controls)


@pytest.mark.parametrize("slider", SLIDERS.values(), ids=SLIDERS)
def test_only_a_notebook_gets_scripts(slider: Slider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDIST_BOOK", raising=False)
    notebook, scripts = html(slider), assets(*SCRIPTS)
    monkeypatch.setenv("MINIDIST_BOOK", "1")
    assert notebook == html(slider) + scripts
    assert not BeautifulSoup(html(slider), "html.parser").select("style, script:not([type])")
    for text in re.findall(r"<(?:style|script)>\n(.*?)</(?:style|script)>", scripts, re.S):
        bare = text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w|url\([^#]|@import|\beval\b|innerHTML", bare)


ENDS = """figure => {
  const knobs = [...figure.querySelectorAll(".knobs input")];
  const found = [];
  for (let ends = 0; ends < 2 ** knobs.length; ends += 1) {
    knobs.forEach((knob, bit) => {
      knob.value = ends & (2 ** bit) ? knob.max : 0;
      knob.dispatchEvent(new Event("input"));
    });
    const words = [...figure.querySelectorAll(".knobs, .said")].map((node) => node.textContent);
    found.push([...words, figure.querySelector(".picture").innerHTML]);
  }
  return found;
}"""


def expect_sense_at_the_limits(page: Page) -> None:
    for name, slider in SLIDERS.items():
        figure = fresh(page, name)
        expect_sense(figure)
        found = figure.evaluate(ENDS)
        assert len(found) == 2 ** sum(not control.choose for control in slider.controls)
        assert not any(NONSENSE.search(text) for shown in found for text in shown), name
        expect_sense(figure)


def test_limits_show_something_sensible(desk: Page) -> None:
    expect_sense_at_the_limits(desk)


def test_limits_show_something_sensible_on_a_phone(pages: Pages) -> None:  # noqa: F811
    page = pages.open(all_of_them(), PHONE)
    expect_sense_at_the_limits(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_state_in_words(desk: Page) -> None:
    figure = fresh(desk, "state")
    said = expect_sense(figure)
    assert "DDP would need 128 GB on every rank. ZeRO-1, ZeRO-2 and ZeRO-3 fit" in said
    assert "no state" in turn(figure, "Parameters", 0)
    assert "None fits" in turn(figure, "Parameters", -1)
    expect(figure.locator(".picture")).to_contain_text("off the scale")
    assert "ZeRO-3 fits into 77.3 GB" in turn(figure, "Ranks", -1)
    assert "nobody to share with" in turn(figure, "Ranks", 0)
    expect(figure.get_by_label("Parameters")).to_have_attribute("aria-valuetext", "10 trillion")
    turn(figure, "Parameters", 1)
    assert "holds 8 MB" in turn(figure, "Dtypes", "fp32, plain SGD")


def widths(figure: Locator) -> list[float]:
    """How long the parts of the bars are, in percent."""
    wide = "bars => bars.map((bar) => parseFloat(bar.style.width))"
    found: list[float] = figure.locator(".lane i:not(.limit)").evaluate_all(wide)
    return found


def test_bars_are_as_long_as_the_parts_are_large(desk: Page) -> None:
    found = widths(fresh(desk, "state"))
    assert len(found) == 12
    ddp, zero3 = found[:3], found[9:]
    assert ddp[0] == pytest.approx(ddp[1]) == pytest.approx(ddp[2] / 2, abs=0.01)
    assert zero3 == pytest.approx([each / 8 for each in ddp], abs=0.01)
    parts = memory(step_of("small", 1, 2048), "single")
    base = [parts["weights"], parts["optimizer"]]
    bars = [*base, 0, parts["activations"], parts["begins"]]
    bars += [*base, parts["gradients"], parts["update"]]
    found = widths(fresh(desk, "peak"))
    scale = found[0] / bars[0]
    assert found == pytest.approx([scale * part for part in bars], abs=0.02)


def test_curves_in_words(desk: Page) -> None:
    figure = fresh(desk, "curves")
    assert "halving-doubling from 727 KiB on" in expect_sense(figure)
    expect(figure.locator(".crossing")).to_have_count(1)
    assert "forever" in turn(figure, "Bandwidth", 0)
    assert "nobody to sum with" in turn(figure, "Ranks", 0)
    expect(figure.locator(".picture.past svg")).to_have_count(1)  # the last one, faint


def test_overlap_starts_as_the_table_of_its_chapter(desk: Page) -> None:
    figure = fresh(desk, "overlap")
    exposed = {n: seconds_text(ask("exposed", gpus=n, tokens=4096)) for n in (16, 64)}
    said = expect_sense(figure)
    assert "The same 141 buckets" in said
    assert f"during it {exposed[16]}: 91% of the communication is hidden" in said
    assert f"during it {exposed[64]}" in turn(figure, "GPUs", 3)
    assert f"during it {exposed[64]}" not in turn(figure, "Network", "100 Gb/s per GPU")


def test_scaling_starts_as_the_figure_of_its_chapter(desk: Page) -> None:
    figure = fresh(desk, "scaling")
    said = expect_sense(figure)
    own = {"gpus": 256, "sequence": 256}
    alone = ask("step", gpus=1, tokens=2**18, sequence=256) / 256
    kept = alone / ask("step", tokens=1024, **own)
    grows = ask("step", gpus=1, tokens=4096, sequence=256) / ask("step", tokens=4096, **own)
    assert f"{100 * kept:.3g}% if the batch is kept and {100 * grows:.3g}% if it grows" in said
    assert "from 64 ranks on in strong scaling and from 64 ranks on in weak" in said
    assert "and never in weak" in turn(figure, "Sequences", 6)
    assert "2 ranks on in weak" in turn(figure, "Sequences", 0)
    assert "64 sequences are not enough" in turn(figure, "Ranks", -1)
    assert "nobody to average with" in turn(figure, "Ranks", 0)


def test_peak_starts_as_the_figure_of_its_chapter(desk: Page) -> None:
    figure = fresh(desk, "peak")

    def fit(**how: float) -> int:
        return int(ask("largest_batch", strategy="single", gpus=1, tokens=2048, **how))

    most = fit()
    peak = ask("peak", strategy="single", gpus=1, tokens=2048)
    said = expect_sense(figure)
    assert f"The peak is {nbytes_text(peak)}, in the update. Up to {most} sequences fit" in said
    assert "into 77.3 GB, 90% of the GPU" in said
    assert f"Only {most} sequences" in turn(figure, "Sequences", 4)
    turn(figure, "Sequences", 0)
    said = turn(figure, "Checkpoints", "every block")
    assert f"in the update. Up to {fit(checkpointing=1.0)} sequences fit" in said
    assert "Not even one sequence" in turn(figure, "Tokens", -1)
    assert "state alone does not fit" in turn(figure, "GPU", "24 GiB")
    assert "nothing to train" in turn(figure, "Parameters", 0)


def test_a_grid_starts_as_the_plan_of_its_chapter(desk: Page) -> None:
    figure = fresh(desk, "grid")
    split = {"tensor": 8, "pipeline": 16, "micro_batches": 16, "interleaved": 8}
    own = plan(LARGE, H100, 16_384, **split).forecasts["zero2"]
    said = expect_sense(figure)
    assert "128 replicas of 128 GPUs, 16 sequences each" in said
    assert f"The peak of {nbytes_text(own.peak)} does not fit into 77.3 GB" in said
    assert f"The bubble is {own.bubble / own.overlapped:.0%}" in said
    assert f"A step takes {seconds_text(own.overlapped)}" in said
    again = plan(LARGE, H100, 16_384, **split, checkpointing=1.0).forecasts["zero2"]
    said = turn(figure, "Checkpoints", "every block")
    assert f"The peak of {nbytes_text(again.peak)} fits into 77.3 GB" in said
    assert "multiple of tensor * pipeline = 128, got 1." in turn(figure, "GPUs", 0)
    turn(figure, "Tensor", 0)
    assert "No replica and no layer" in turn(figure, "Pipeline", 0)
    assert "14,336 replicas would have nothing to do" in turn(figure, "GPUs", 14)
    turn(figure, "Between", "FSDP")
    assert "take ZeRO" in turn(figure, "Pipeline", 4)
    turn(figure, "Between", "DDP")
    assert "expected at most 10 stages" in turn(figure, "Parameters", 1)
    assert "nothing to hold" in turn(figure, "Parameters", 0)


def test_a_plan_in_words(desk: Page) -> None:
    figure = fresh(desk, "plan")
    own = plan(SMALL, "H100", 8)
    assert own.best == "fsdp_kept"
    most = own.forecasts["fsdp_kept"].largest_batch
    said = expect_sense(figure)
    assert "Run FSDP, weights kept: the simplest that fits into 77.3 GB" in said
    assert f"Up to {most} sequence fits on a GPU. Compute binds" in said
    picture = figure.locator(".picture")
    for name, each in own.forecasts.items():
        if each.fits:
            expect(picture).to_contain_text(f"{each.tokens_per_second:,.0f} tokens/s")
        assert nbytes_text(each.peak) in picture.inner_text(), name
    expect(picture).not_to_contain_text("hybrid")
    turn(figure, "Network", "10 Gb/s per GPU")
    assert "The network binds" in turn(figure, "GPUs", 7)
    expect(picture).to_contain_text("hybrid")
    turn(figure, "Times of", "DDP")
    expect(picture).to_contain_text("DDP, with 8,192 tokens on a GPU")
    turn(figure, "Sequences", 1)
    turn(figure, "Checkpoints", "every block")
    assert "Run one GPU" in turn(figure, "GPUs", 0)
    turn(figure, "Sequences", 0)
    assert "activations of one sequence alone" in turn(figure, "Tokens", -1)


def test_checkpoints_in_words(desk: Page) -> None:
    figure = fresh(desk, "checkpoints")
    mtbf = 5 * YEAR / 4096
    best = widgets.best_interval(30, mtbf)
    said = expect_sense(figure)
    fails, saves = widgets.time_text(mtbf), widgets.time_text(best)
    assert f"Something fails every {fails}. With a checkpoint every {saves}" in said
    assert f"{100 * widgets.lost(best, 30, mtbf, 600).total:.2g}% of the time is lost" in said
    turn(figure, "A GPU fails", 0)
    turn(figure, "GPUs", -1)
    assert "100% of the time is lost" in turn(figure, "A restart", -1)


def test_keys_move_a_slider_and_the_picture_follows(desk: Page) -> None:
    figure = fresh(desk, "state")
    figure.get_by_label("Ranks").press("ArrowRight")
    expect(figure.locator(".knobs b").nth(1)).to_have_text("12")
    expect(figure.locator(".said")).to_contain_text("ZeRO")
    label = figure.get_by_role("img").get_attribute("aria-label")
    assert label == f"What each rank holds between steps. {figure.locator('.said').inner_text()}"


def test_axe_finds_nothing_after_use_at_night(pages: Pages) -> None:  # noqa: F811
    page = pages.open(all_of_them(), PHONE, "dark")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_numbers_read_well() -> None:
    assert [nbytes_text(n) for n in (0, 999, 1500, 112e9)] == ["0 B", "999 B", "1.5 kB", "112 GB"]
    assert [seconds_text(t) for t in (0, 1e-6, 0.25)] == ["0 s", "1 µs", "250 ms"]
