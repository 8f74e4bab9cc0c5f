"""Guesses in a browser: what is asked, kept and said, and the board of all."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from course.widgets import guess, guesses
from tests.support.browser import (  # noqa: F401 (a fixture)
    FORBIDDEN,
    FULL,
    browser,
)
from tests.support.pages import PHONE, Pages

MEMORY = guess("memory", "How much memory for `x` < 1?", answer=51.2, unit="GB")
BYTES = guess("bytes", "How many bytes?", answer=1789.6)
WINNER = guess("winner", "Which wins?", answer="tree", choices=("ring", "tree"))
STYLES = ("widget.css", "widgets.css", "guess.css")
SCRIPTS = ("player.js", "guess.js")


class Site:
    """A folder as the book has it, with two chapters and the board."""

    def __init__(self, browser: Browser, folder: Path) -> None:  # noqa: F811
        self.pages = Pages(browser, folder)
        for package in ("minidist.plots", "course.widgets"):
            for file in (files(package) / "static").iterdir():
                (folder / file.name).write_text(file.read_text("utf-8"))
        head = "".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
        scripts = "".join(f'<script src="{name}"></script>' for name in SCRIPTS)
        self.wrap = head, scripts

    def open(
        self, *shown: object, name: str = "page.html", before: str = "", **options: str | int | bool
    ) -> Page:
        body = "".join(each._repr_html_() for each in shown)  # type: ignore[attr-defined]
        page = self.pages.open(self.wrap[0] + body + self.wrap[1], **options)  # type: ignore[arg-type]
        made = self.pages.folder / "page.html"
        if name != made.name:
            made.rename(made.with_name(name))
        if before:
            page.add_init_script(before)
        page.goto(made.with_name(name).as_uri())
        return page


@pytest.fixture
def site(browser: Browser, tmp_path: Path) -> Iterator[Site]:  # noqa: F811
    site = Site(browser, tmp_path)
    site.pages.context()
    yield site
    for context in browser.contexts:
        context.close()
    assert site.pages.errors == []


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"#guess-{name}")


def button(shown: Locator, name: str) -> Locator:
    return shown.get_by_role("button", name=name, exact=True)


def enter(page: Page, name: str, text: str) -> Locator:
    """Guess a number; returns what is said."""
    shown = figure(page, name)
    shown.get_by_label("Your guess").fill(text)
    button(shown, "Guess").click()
    return shown.get_by_role("status")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("20", "You guessed 20 GB; it is 51.2: 2.6 times your guess."),
        ("200 GB", "You guessed 200 GB; it is 51.2: your guess is 3.9 times that."),
        ("51,2", "You guessed 51.2 GB; it is 51.2: you are within 5%."),
        ("2,000,000", "You guessed 2,000,000 GB; it is 51.2: your guess is 39,000 times that."),
        ("1e-3", "You guessed 0.001 GB; it is 51.2: 51,000 times your guess."),
    ],
)
def test_a_number_is_held_against_the_answer(text: str, says: str, site: Site) -> None:
    expect(enter(site.open(MEMORY), "memory", text)).to_have_text(says)


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "1e999"])
def test_what_is_no_number_is_no_guess(text: str, site: Site) -> None:
    page = site.open(MEMORY)
    expect(enter(page, "memory", text)).to_have_text("Enter a number above zero.")
    expect(enter(page, "memory", "50")).to_contain_text("within 5%")


@pytest.mark.parametrize(
    ("pick", "says"),
    [("tree", "You picked “tree”: right."), ("ring", "You picked “ring”; it is “tree”.")],
)
def test_a_pick_is_right_or_wrong(pick: str, says: str, site: Site) -> None:
    shown = figure(site.open(WINNER), "winner")
    button(shown, pick).click()
    expect(shown.get_by_role("status")).to_have_text(says)
    expect(button(shown, "ring")).to_be_hidden()


def test_it_says_nothing_of_the_answer_before_and_after_only_once(site: Site) -> None:
    page = site.open(MEMORY)
    shown = figure(page, "memory")
    assert "51" not in shown.inner_text()
    shown.get_by_text("The answer").click()
    expect(shown.get_by_text("51.2 GB")).to_be_visible()
    enter(page, "memory", "1")
    assert shown.inner_text().count("51.2") == 1


def test_a_guess_stays_until_it_is_cleared_and_keys_are_enough(site: Site) -> None:
    page = site.open(MEMORY)
    shown = figure(page, "memory")
    box = shown.get_by_label("Your guess")
    box.focus()
    page.keyboard.type("20")
    page.keyboard.press("Enter")
    expect(button(shown, "Clear my guess")).to_be_focused()
    page.reload()
    expect(shown.get_by_role("status")).to_contain_text("You guessed 20 GB")
    button(shown, "Clear my guess").press("Enter")
    expect(box).to_be_focused()
    expect(shown.get_by_role("status")).to_be_empty()
    page.reload()
    expect(box).to_be_visible()


def test_the_board_has_the_guesses_of_all_pages_and_leads_there(site: Site) -> None:
    enter(site.open(MEMORY, name="why.html"), "memory", "20")
    page = site.open(BYTES, WINNER, name="ring.html")
    enter(page, "bytes", "1,000")
    button(figure(page, "winner"), "tree").click()
    page = site.open(guesses(), name="progress.html")
    board = page.locator(".guesses")
    expect(board.get_by_role("status")).to_have_text(
        "1 of 2 within a factor of two, 1 of 1 picked right"
    )
    rows = board.get_by_role("listitem")
    expect(rows.nth(0)).to_contain_text("You guessed 20 GB; it is 51.2: 2.6 times your guess.")
    expect(rows.nth(1).locator(".dot")).to_have_attribute("style", re.compile("left: 37.3"))
    expect(rows.nth(2).locator("b")).to_have_text("✓")
    rows.nth(0).get_by_role("link", name="How much memory for x < 1?").click()
    assert page.url.endswith("/why.html#guess-memory")
    page.go_back()
    button(board, "Clear all").click()
    expect(board).to_contain_text("None yet")
    expect(rows).to_have_count(0)
    page.reload()
    expect(board).to_contain_text("None yet")


def test_a_guess_far_off_stands_at_the_edge(site: Site) -> None:
    page = site.open(MEMORY, guesses())
    enter(page, "memory", "1")
    dot = page.locator(".dot")
    expect(dot).to_have_text("‹")
    expect(dot).to_have_attribute("style", "left: 0%")


@pytest.mark.parametrize("before", [FULL, FORBIDDEN], ids=["full", "forbidden"])
def test_it_works_where_nothing_can_be_kept_and_says_so(before: str, site: Site) -> None:
    page = site.open(MEMORY, WINNER, guesses(), before=before)
    expect(enter(page, "memory", "20")).to_contain_text("only while you stay on the page")
    button(figure(page, "winner"), "ring").click()
    expect(page.locator(".guesses")).to_contain_text("0 of 1 within a factor of two, 0 of 1")


@pytest.mark.parametrize(
    "kept", ["{not json", "null", "3", '{"memory": 3}', '{"memory": {"guess": "tree"}}']
)
def test_what_is_kept_may_be_spoiled(kept: str, site: Site) -> None:
    page = site.open(MEMORY, guesses())
    page.evaluate("kept => localStorage.setItem('minidist.guesses', kept)", kept)
    page.reload()
    expect(page.locator(".guesses")).to_contain_text("None yet")
    enter(page, "memory", "20")
    expect(page.locator(".guesses")).to_contain_text("0 of 1 within a factor of two")
    page.reload()
    expect(figure(page, "memory").get_by_role("status")).to_contain_text("You guessed 20 GB")


def test_a_guess_is_held_against_the_answer_of_the_page_as_it_is(site: Site) -> None:
    enter(site.open(MEMORY), "memory", "20")
    page = site.open(guess("memory", "How much?", answer=20, unit="GB"))
    expect(figure(page, "memory").get_by_role("status")).to_contain_text("within 5%")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(theme: str, site: Site) -> None:
    page = site.open(MEMORY, BYTES, WINNER, guesses(), theme=theme, width=PHONE)
    for step in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE
        for shown in page.locator(".guess :is(button, input):visible, .guesses button").all():
            box = shown.bounding_box()
            assert box is None or box["height"] >= 44
        found = Axe().run(page, options={"preload": False})
        assert found.violations_count == 0, found.generate_report()
        if step == 0:
            enter(page, "memory", "4")
            enter(page, "bytes", "9000")
            button(figure(page, "winner"), "ring").click()


def test_without_a_script_it_can_be_read(site: Site) -> None:
    page = site.open(MEMORY, WINNER, guesses(), java_script_enabled=False)
    expect(page.get_by_role("listitem")).to_have_text(["ring", "tree"])
    expect(page.get_by_text("is collected here")).to_be_visible()
    page.get_by_text("The answer").first.click()
    expect(page.get_by_text("51.2 GB")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)


def test_what_pages_carry_is_small() -> None:
    static = files("course.widgets") / "static"
    assert sum(len((static / f"guess.{kind}").read_bytes()) for kind in ("js", "css")) < 8_000


def test_only_what_can_be_guessed_is_asked() -> None:
    for answer in (0.0, -1.0, float("nan"), float("inf"), "tree"):
        with pytest.raises(ValueError, match="expected a number above zero"):
            guess("x", "How many?", answer=answer)
    with pytest.raises(ValueError, match="'star', is none of"):
        guess("x", "Which?", answer="star", choices=("ring", "tree"))


def test_a_terminal_gets_a_line_without_the_answer() -> None:
    assert repr(MEMORY) == "How much memory for `x` < 1?"
    assert repr(guesses()) == "Your guesses"
    assert (MEMORY.shown, BYTES.shown, WINNER.shown) == ("51.2", "1,790", "tree")
