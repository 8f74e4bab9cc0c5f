"""A slider starts at the settings of what stands beside it: both numbers, read off the page."""

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page

from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

BOOK = Path(__file__).parents[2] / "_build" / "html" / "book"
# Page, slider: its words when the page opens, and those of the page beside it, with the same
# numbers. The page's may have fewer digits.
STARTS = [
    ("ddp", "overlap", r"during it ([\d.]+) ms", r"\b16 89\.9 60\.4 84\.9 ([\d.]+) "),
    ("ddp", "overlap", r"after backward they add ([\d.]+) ms", r"\b16 89\.9 60\.4 ([\d.]+) "),
    ("ddp", "borders", r"([\d.]+) ms for DDP's 141", r"\b16 89\.9 60\.4 84\.9 ([\d.]+) "),
    (
        "scaling",
        "scaling",
        r"256 ranks is ([\d.]+)% if the batch is kept and ([\d.]+)%",
        r"On 256 ranks strong scaling keeps (\d+) ?%, weak scaling (\d+) ?%",
    ),
    (
        "fsdp",
        "prefetch",
        r"([\d.]+) times its compute",
        r"\b8 4 [\d.]+ [\d.]+ ([\d.]+) ",  # blocks per unit, units, GB, without, with
    ),
    ("zero", "state", r"DDP would need (\d+) GB", r"one copy would take (\d+) GB"),
    ("beyond", "grid", r"A step takes ([\d.]+) s", r"fits: \{ ?zero2.+?([\d.]+) s, \d+ GB"),
    ("beyond", "grid", r"The peak of (\d+) GB", r"fits: \{ ?zero2.+?[\d.]+ s, (\d+) GB"),
    ("choosing", "plan", r"([\d,]+) tokens/s \(100%\): run", r"fsdp_kept .*?([\d,]+) compute"),
]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:  # noqa: F811
    return new_page(browser.new_context())


def beside(name: str) -> str:
    """What a page says around its widgets."""
    soup = BeautifulSoup((BOOK / f"{name}.html").read_text(), "html.parser")
    for part in soup.select("figure.minidist-widget, script, style"):
        part.decompose()
    main = soup.select_one("main")
    assert main
    return re.sub(r"\s+", " ", main.get_text(" "))


@pytest.mark.parametrize(("name", "kind", "of_slider", "of_page"), STARTS)
def test_a_slider_starts_with_the_number_beside_it(
    page: Page, name: str, kind: str, of_slider: str, of_page: str
) -> None:
    page.goto((BOOK / f"{name}.html").as_uri())
    figure = page.locator(f'figure.slider[data-widget="{kind}"]')
    figure.locator("svg, .lanes").first.wait_for()
    shown = re.search(of_slider, figure.inner_text())
    said = re.search(of_page, beside(name))
    assert shown, figure.inner_text()
    assert said, of_page
    for own, other in zip(shown.groups(), said.groups(), strict=True):
        digits = len(other.partition(".")[2])
        assert f"{float(own.replace(',', '')):.{digits}f}" == other.replace(",", "")
