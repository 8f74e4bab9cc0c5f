"""A slider starts at the settings of what stands beside it: both numbers, read off the page."""

import re
from itertools import groupby

from bs4 import BeautifulSoup
from playwright.sync_api import Browser

from tests.book.rendered import HTML
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

BOOK = HTML / "book"
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
        r"On 256 ranks the efficiency of strong scaling is (\d+) ?%, that of weak scaling (\d+) ?%",
    ),
    ("zero", "state", r"DDP would need (\d+) GB", r"one copy would take (\d+) GB"),
    ("beyond", "grid", r"A step takes ([\d.]+) s", r"\bsum ([\d.]+) "),
    ("choosing", "plan", r"([\d,]+) tokens/s \(100%\): run", r"fsdp_kept .*?([\d,]+) compute"),
]


def beside(name: str) -> str:
    """What a page says around its widgets."""
    page = BeautifulSoup((BOOK / f"{name}.html").read_text(), "html.parser")
    for part in page.select("figure.minidist-widget, script, style"):
        part.decompose()
    main = page.select_one("main")
    assert main
    return re.sub(r"\s+", " ", main.get_text(" "))


def as_said(own: str, said: str) -> bool:
    """Whether a slider's number, rounded to the digits of the page's, is the page's."""
    digits = len(said.partition(".")[2])
    return f"{float(own.replace(',', '')):.{digits}f}" == said.replace(",", "")


def test_a_slider_starts_with_the_number_beside_it(browser: Browser) -> None:  # noqa: F811
    page, offenders = new_page(browser), []
    for name, starts in groupby(STARTS, lambda start: start[0]):
        page.goto((BOOK / f"{name}.html").as_uri())
        around = beside(name)
        for _, kind, of_slider, of_page in starts:
            figure = page.locator(f'figure.slider[data-widget="{kind}"]')
            figure.locator("svg, .lanes").first.wait_for()
            text = figure.inner_text()
            own, said = re.search(of_slider, text), re.search(of_page, around)
            if not own or not said or not all(map(as_said, own.groups(), said.groups())):
                offenders.append(
                    f"{name}, {kind}: {said and said[0]!r} of the page, not in:\n{text}"
                )
    assert not offenders, "\n".join(offenders)
