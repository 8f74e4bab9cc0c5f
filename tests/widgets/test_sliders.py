"""Sliders: what Python writes, and what a browser makes of it."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from playwright.sync_api import Locator, Page, expect

from course.widgets import curves_slider, overlap_slider, state_slider
from course.widgets.page import Slider, assets, nbytes_text, seconds_text
from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import DESK, PHONE, Pages, pages  # noqa: F401 (a fixture)

SLIDERS = {
    "state": state_slider(),
    "alone": state_slider(1.3e9, alone=True),
    "curves": curves_slider(),
    "overlap": overlap_slider(),
}
each_slider = pytest.mark.parametrize("slider", SLIDERS.values(), ids=SLIDERS)
NONSENSE = re.compile(r"NaN|undefined|Infinity|null")


def html(slider: Slider) -> str:
    return slider._repr_html_()


def knob(page: Page, label: str) -> Locator:
    return page.get_by_label(re.compile(f"^{label}"))


def turn(page: Page, control: Locator, to: str | int) -> None:
    """A select by its text; a slider to one of its places, counted from the end if negative."""
    if isinstance(to, str):
        control.select_option(to)
        return
    most = int(control.get_attribute("max") or 0)
    control.fill(str(to if to >= 0 else most + 1 + to))


def expect_sense(page: Page) -> str:
    """No number is none, in words and coordinates, and nothing sticks out; what is said."""
    figure = page.locator("figure")
    assert not NONSENSE.search(figure.evaluate("it => it.querySelector('.picture').innerHTML"))
    text = figure.locator(".said").inner_text()
    assert text
    assert not NONSENSE.search(figure.inner_text())
    outside = """svg => [...svg.querySelectorAll("rect, text, circle")].filter((node) => {
      if (node.closest("defs")) return false;
      const [own, all] = [node, svg].map((it) => it.getBoundingClientRect());
      return own.left < all.left - 3 || own.right > all.right + 8 || own.bottom > all.bottom + 3;
    }).map((node) => node.outerHTML)"""
    for svg in figure.locator("svg").all():
        assert svg.evaluate(outside) == []
    return text


@each_slider
def test_a_terminal_gets_a_line_and_a_page_without_scripts_a_table(
    pages: Pages,  # noqa: F811
    slider: Slider,
) -> None:
    start = [control.texts[control.place] for control in slider.controls]
    assert all(text in repr(slider) for text in start)
    page = pages.open(html(slider), java_script_enabled=False)
    for row in slider.rows:
        expect(page.get_by_role("row", name=row[0]).first).to_contain_text(row[-1])


def test_the_table_says_what_the_library_says() -> None:
    rows = {row[0]: row[1:] for row in state_slider().rows}
    assert rows["DDP"] == ["14 GB", "14 GB", "84 GB", "112 GB"]
    assert rows["ZeRO-3"][-1] == "14 GB"
    exposed = [row[-1] for row in overlap_slider(ranks=1).rows]
    assert exposed == ["0 s"] * 4


@each_slider
def test_only_a_notebook_gets_scripts(slider: Slider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDIST_BOOK", raising=False)
    notebook, scripts = html(slider), assets("formulas.js", "sliders.js")
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
    found.push([figure.innerText, figure.querySelector(".picture").innerHTML]);
  }
  return found;
}"""


@pytest.mark.parametrize("width", [PHONE, DESK])
@each_slider
def test_limits_show_something_sensible(pages: Pages, slider: Slider, width: int) -> None:  # noqa: F811
    page = pages.open(html(slider), width)
    found = page.locator("figure").evaluate(ENDS)
    assert len(found) == 2 ** sum(not control.choose for control in slider.controls)
    assert not any(NONSENSE.search(text) for both in found for text in both)
    expect_sense(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_state_in_words(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(state_slider()))
    size, ranks = knob(page, "Parameters"), knob(page, "Ranks")
    assert "DDP would need 112 GB on every rank. ZeRO-1, ZeRO-2 and ZeRO-3 fit" in expect_sense(
        page
    )
    turn(page, size, 0)
    assert "no state" in expect_sense(page)
    turn(page, size, -1)
    assert "None fits" in expect_sense(page)
    expect(page.locator("svg")).to_contain_text("off the scale")
    turn(page, ranks, -1)
    assert "ZeRO-3 fits into 80 GB" in expect_sense(page)
    turn(page, ranks, 0)
    assert "nobody to share with" in expect_sense(page)
    expect(size).to_have_attribute("aria-valuetext", "10 trillion")
    turn(page, size, 1)
    knob(page, "Dtypes").select_option("fp32, plain SGD")
    assert "holds 8 MB" in expect_sense(page)


def test_bars_are_as_long_as_the_parts_are_large(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(state_slider()))
    wide = "bars => bars.map((bar) => bar.width.baseVal.value)"
    widths = page.locator("svg rect.fill").evaluate_all(wide)
    assert len(widths) == 12
    ddp, zero3 = widths[:3], widths[9:]
    assert ddp[0] == pytest.approx(ddp[1]) == pytest.approx(ddp[2] / 6)
    assert zero3 == pytest.approx([each / 8 for each in ddp])


def test_curves_in_words(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(curves_slider()))
    assert "halving-doubling from 727 KiB on" in expect_sense(page)
    expect(page.locator(".crossing")).to_have_count(1)
    turn(page, knob(page, "Bandwidth"), 0)
    assert "forever" in expect_sense(page)
    turn(page, knob(page, "Ranks"), 0)
    assert "nobody to sum with" in expect_sense(page)
    expect(page.locator(".picture svg")).to_have_count(0)


def test_overlap_in_words(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(overlap_slider()))
    assert "% of the communication is hidden" in expect_sense(page)
    turn(page, knob(page, "Bandwidth"), 0)
    assert "never ends" in expect_sense(page)
    turn(page, knob(page, "Ranks"), 0)
    assert "nobody to average with" in expect_sense(page)


def test_keys_move_a_slider_and_the_picture_follows(pages: Pages) -> None:  # noqa: F811
    page = pages.open(html(state_slider()))
    knob(page, "Ranks").press("ArrowRight")
    expect(page.locator(".knobs b").nth(1)).to_have_text("12")
    expect(page.locator(".said")).to_contain_text("ZeRO")
    label = page.get_by_role("img").get_attribute("aria-label")
    assert label == f"What each rank holds between steps. {page.locator('.said').inner_text()}"


@pytest.mark.parametrize(("theme", "width"), [("light", DESK), ("dark", PHONE)])
def test_axe_finds_nothing(pages: Pages, theme: str, width: int) -> None:  # noqa: F811
    page = pages.open("".join(map(html, SLIDERS.values())), width, theme)
    page.locator("summary").first.click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_numbers_read_well() -> None:
    assert [nbytes_text(n) for n in (0, 999, 1500, 112e9)] == ["0 B", "999 B", "1.5 kB", "112 GB"]
    assert [seconds_text(t) for t in (0, 1e-6, 0.25)] == ["0 s", "1 µs", "250 ms"]
