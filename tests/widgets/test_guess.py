"""Guesses in a browser: what is asked, kept and said, and the board of all."""

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from course.widgets import guess, guesses
from tests.support.browser import FORBIDDEN, FULL, browser  # noqa: F401 (a fixture)
from tests.support.pages import PHONE, Pages, site_of_the_book  # noqa: F401 (a fixture)

MEMORY = guess("memory", "How much memory for `x` < 1?", answer=51.2, unit="GB")
BYTES = guess("bytes", "How many bytes?", answer=1789.6)
WINNER = guess("winner", "Which wins?", answer="tree", choices=("ring", "tree"))


def html(*shown: Any) -> str:
    return "".join(each._repr_html_() for each in shown)


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
def test_a_number_is_held_against_the_answer(text: str, says: str, site: Pages) -> None:
    expect(enter(site.open(html(MEMORY)), "memory", text)).to_have_text(says)


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "1e999"])
def test_what_is_no_number_is_no_guess(text: str, site: Pages) -> None:
    page = site.open(html(MEMORY))
    expect(enter(page, "memory", text)).to_have_text("Enter a number above zero.")
    expect(enter(page, "memory", "50")).to_contain_text("within 5%")


@pytest.mark.parametrize(
    ("pick", "says"),
    [("tree", "You picked “tree”: right."), ("ring", "You picked “ring”; it is “tree”.")],
)
def test_a_pick_is_right_or_wrong(pick: str, says: str, site: Pages) -> None:
    shown = figure(site.open(html(WINNER)), "winner")
    button(shown, pick).click()
    expect(shown.get_by_role("status")).to_have_text(says)
    expect(button(shown, "ring")).to_be_hidden()


def test_it_says_nothing_of_the_answer_before_and_after_only_once(site: Pages) -> None:
    page = site.open(html(MEMORY))
    shown = figure(page, "memory")
    assert "51" not in shown.inner_text()
    shown.get_by_text("The answer").click()
    expect(shown.get_by_text("51.2 GB")).to_be_visible()
    enter(page, "memory", "1")
    assert shown.inner_text().count("51.2") == 1


def test_a_guess_stays_until_it_is_cleared_and_keys_are_enough(site: Pages) -> None:
    page = site.open(html(MEMORY))
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


def test_the_board_has_the_guesses_of_all_pages_and_leads_there(site: Pages) -> None:
    enter(site.open(html(MEMORY), name="why"), "memory", "20")
    page = site.open(html(BYTES, WINNER), name="ring")
    enter(page, "bytes", "1,000")
    button(figure(page, "winner"), "tree").click()
    page = site.open(html(guesses()), name="progress")
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


def test_a_guess_far_off_stands_at_the_edge(site: Pages) -> None:
    page = site.open(html(MEMORY, guesses()))
    enter(page, "memory", "1")
    dot = page.locator(".dot")
    expect(dot).to_have_text("‹")
    expect(dot).to_have_attribute("style", "left: 0%")


@pytest.mark.parametrize("before", [FULL, FORBIDDEN], ids=["full", "forbidden"])
def test_it_works_where_nothing_can_be_kept_and_says_so(before: str, site: Pages) -> None:
    page = site.open(html(MEMORY, WINNER, guesses()), before=before)
    expect(enter(page, "memory", "20")).to_contain_text("This browser keeps nothing here")
    button(figure(page, "winner"), "ring").click()
    expect(page.locator(".guesses")).to_contain_text("0 of 1 within a factor of two, 0 of 1")


@pytest.mark.parametrize(
    "kept", ["{not json", "null", "3", '{"memory": 3}', '{"memory": {"guess": "tree"}}']
)
def test_what_is_kept_may_be_spoiled(kept: str, site: Pages) -> None:
    page = site.open(html(MEMORY, guesses()))
    page.evaluate("kept => localStorage.setItem('minidist.guesses', kept)", kept)
    page.reload()
    expect(page.locator(".guesses")).to_contain_text("None yet")
    enter(page, "memory", "20")
    expect(page.locator(".guesses")).to_contain_text("0 of 1 within a factor of two")
    page.reload()
    expect(figure(page, "memory").get_by_role("status")).to_contain_text("You guessed 20 GB")


def test_a_guess_is_held_against_the_answer_of_the_page_as_it_is(site: Pages) -> None:
    enter(site.open(html(MEMORY)), "memory", "20")
    page = site.open(html(guess("memory", "How much?", answer=20, unit="GB")))
    expect(figure(page, "memory").get_by_role("status")).to_contain_text("within 5%")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(theme: str, site: Pages) -> None:
    page = site.open(html(MEMORY, BYTES, WINNER, guesses()), theme=theme, width=PHONE)
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


def test_without_a_script_it_can_be_read(site: Pages) -> None:
    page = site.open(html(MEMORY, WINNER, guesses()), java_script_enabled=False)
    expect(page.get_by_role("listitem")).to_have_text(["ring", "tree"])
    expect(page.get_by_text("is collected here")).to_be_visible()
    page.get_by_text("The answer").first.click()
    expect(page.get_by_text("51.2 GB")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)


def test_in_a_notebook_it_brings_its_scripts(
    browser: Browser,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MINIDIST_BOOK", raising=False)
    asked = [guess(name, "How many bytes?", answer=1789.6) for name in ("one", "two")]
    page = browser.new_page()
    page.set_content(html(*asked))
    expect(page.get_by_label("Your guess")).to_have_count(2)
    expect(enter(page, "two", "1789.6")).to_contain_text("you are within 5%")
    monkeypatch.setenv("MINIDIST_BOOK", "1")
    assert "<script>" not in html(guess("one", "How many bytes?", answer=1789.6))


def test_only_what_can_be_guessed_is_asked() -> None:
    for answer in (0.0, -1.0, float("nan"), float("inf"), "tree"):
        with pytest.raises(ValueError, match="expected a number above zero"):
            guess("x", "How many?", answer=answer)
    with pytest.raises(ValueError, match="'star', is none of"):
        guess("x", "Which?", answer="star", choices=("ring", "tree"))


def test_a_terminal_gets_a_line_without_the_answer() -> None:
    assert repr(MEMORY) == "How much memory for `x` < 1?"
    assert repr(guesses()) == "Your guesses"
    for each, shown in ((MEMORY, "51.2"), (BYTES, "1,790"), (WINNER, "tree")):
        assert f'"shown":"{shown}"' in each.html
