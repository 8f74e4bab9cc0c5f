"""What all pages carry for the sake of what a reader does: little; and two of them agree on it."""

from pathlib import Path

from playwright.sync_api import expect

from course.widgets import editor, guess
from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import Pages, site_of_the_book  # noqa: F401 (a fixture)
from tools.work import ROOT

STATIC = ROOT / "lib" / "course" / "interactive" / "static"
CHAPTER = guess("many", "How many?", answer=2)._repr_html_() + editor("ring")._repr_html_()


def test_a_page_that_nobody_edits_carries_little(site: Pages) -> None:
    """Of the scripts that read what is kept, and of their styles."""
    site.open(CHAPTER)
    readers = {file.stem for file in STATIC.glob("*.js") if "minidistKept" in file.read_text()}
    loaded = {STATIC / Path(url).name for url in site.requests}
    sizes = {file.name: file.stat().st_size for file in loaded if file.stem in readers}
    assert {"kept.js", "puzzles.js", "guess.js", "progress.js"} < {*sizes}
    assert sum(sizes.values()) < 20_000, sizes


def test_one_script_reads_and_writes_it() -> None:
    users = [file.name for file in STATIC.glob("*.js") if "localStorage" in file.read_text()]
    assert users == ["kept.js"]


def test_what_is_kept_in_one_tab_is_shown_in_the_other(site: Pages) -> None:
    here, there = site.open(CHAPTER), site.open(CHAPTER)
    here.get_by_label("Your guess").fill("3")
    here.get_by_role("button", name="Guess", exact=True).click()
    expect(there.get_by_text("You guessed 3; it is 2")).to_be_visible()
    there.get_by_role("button", name="Clear my guess").click()
    expect(here.get_by_label("Your guess")).to_be_visible()
