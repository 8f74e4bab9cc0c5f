"""What stands under a link while one points at it: a term's meaning, or a figure."""

import os
import re
import subprocess
import sys
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import PHONE, Pages, site_of_the_book  # noqa: F401 (a fixture)
from tools.work import ROOT

DRAWN = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='300' height='200'%3E"
    "%3Crect width='300' height='200' fill='%2356b4e9'/%3E%3C/svg%3E"
)
ARTICLE = f"""<article><p>A <a class="reference internal" href="glossary.html#term-chunk"
title="A piece of a tensor.">chunk</a> travels around <a class="reference internal"
href="#fig-ring"><span class="std std-numref">Fig. 4.1</span></a>, as <a class="reference internal"
href="#fig-none"><span class="std std-numref">Fig. 4.9</span></a> does not, and
<a class="reference internal" href="other.html#fig-far" title="A far one."><span
class="std std-numref">Fig. 5.1</span></a>,
<a class="reference internal" href="#place">here</a>.</p><div style="height: 2000px"></div>
<figure id="fig-ring"><img alt="Four ranks." src="{DRAWN}">
<figcaption><p><span class="caption-number">Fig. 4.1 </span><span class="caption-text">A ring of 1.5
GB. Arrows are messages.</span></p></figcaption></figure></article>"""


def card(page: Page, link: str) -> str:
    """The text of the card under a link."""
    page.mouse.move(5, 790)
    expect(page.locator(".card-of-link")).to_be_hidden()
    page.get_by_role("link", name=link).hover()
    expect(page.locator(".card-of-link")).to_be_visible()
    return " ".join((page.locator(".card-of-link").text_content() or "").split())


def test_a_term_says_what_it_means_to_the_pointer_to_keys_and_to_a_screen_reader(
    site: Pages,
) -> None:
    page = site.open(ARTICLE)
    shown, link = page.locator(".card-of-link"), page.get_by_role("link", name="chunk")
    expect(shown).to_be_hidden()
    assert card(page, "chunk") == "A piece of a tensor."
    expect(link).to_have_accessible_description("A piece of a tensor.")
    assert link.get_attribute("title") is None, "the browser would show it a second time"
    shown.hover()
    page.mouse.move(700, 700)
    expect(shown).to_be_hidden()
    page.keyboard.press("Tab")
    expect(link).to_be_focused()
    expect(shown).to_be_visible()
    page.keyboard.press("Escape")
    expect(shown).to_be_hidden()
    found = Axe().run(page, options={"preload": False})
    assert found.violations_count == 0, found.generate_report()


def test_a_figure_out_of_sight_is_shown_with_its_first_sentence(site: Pages) -> None:
    page = site.open(ARTICLE, width=PHONE)
    assert card(page, "Fig. 4.1") == "A ring of 1.5 GB."
    shown = page.locator(".card-of-link")
    picture, box = shown.locator("img"), shown.bounding_box()
    expect(picture).to_have_attribute("src", DRAWN)
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE
    assert card(page, "Fig. 5.1") == "A far one."
    for nothing in ("Fig. 4.9", "here"):
        page.get_by_role("link", name=nothing).hover()
        expect(shown).to_be_hidden()


def test_a_figure_that_is_seen_is_not_shown_twice(site: Pages) -> None:
    page = site.open(ARTICLE.replace("2000px", "0"))
    shown, link = page.locator(".card-of-link"), page.get_by_role("link", name="Fig. 4.1")
    link.focus()
    page.keyboard.press("Shift+Tab")
    expect(shown).to_have_text("A piece of a tensor.")
    page.keyboard.press("Tab")
    expect(link).to_be_focused()
    expect(shown).to_be_hidden()


BOOK = {
    "index": "# Page\n\n```{toctree}\nother\n```\n\nSee {numref}`fig-one` and {numref}`fig-here`."
    "\n\n```{figure} drawn.svg\n:name: fig-here\nHere.\n```\n",
    "other": "# Other\n\n```{figure} drawn.svg\n:name: fig-one\n"
    'Four "ranks" (see {numref}`fig-here`). And more.\n```\n',
}


def test_the_build_writes_a_captions_first_sentence_into_links_from_other_pages(
    tmp_path: Path,
) -> None:
    (tmp_path / "drawn.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    for name, text in BOOK.items():
        (tmp_path / f"{name}.md").write_text(text)
    config = ["-D", "extensions=myst_parser,house.terms", "-D", "numfig=1"]
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-C", "-E", "-q", *config, tmp_path, tmp_path / "html"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "book" / "_ext")])},
        check=True,
    )
    links = re.findall(
        r'<a [^>]*href="([^"]*)#fig-(?:one|here)"([^>]*)><span class="std',
        (tmp_path / "html" / "index.html").read_text(),
    )
    assert links == [("other.html", ' title="Four “ranks”."'), ("", "")]
