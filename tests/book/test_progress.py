"""The theme's contents at the side of a built page carry the ticks of what was read."""

import pytest
from playwright.sync_api import Browser, Page, expect

from course.pages.path import path
from tests.book.rendered import HTML
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("book_is_built")

WORK = [
    name
    for each in path()
    for name in (f"book/{each.page}", *(f"notebooks/{lab.name}" for lab in each.labs))
]


@pytest.fixture
def page(browser: Browser) -> Page:  # noqa: F811
    return new_page(browser)


def open_page(page: Page, name: str) -> None:
    page.goto((HTML / f"{name}.html").as_uri())


def test_what_the_list_has_is_what_the_contents_tick(page: Page) -> None:
    open_page(page, "book/progress")
    for box in page.locator(".your-progress fieldset input").all():
        box.check()
    ticked = page.locator(".bd-docs-nav a:has(.tick)").evaluate_all("all => all.map(a => a.href)")
    assert ticked == [(HTML / f"{name}.html").as_uri() for name in WORK]


def test_a_chapter_and_a_lab_end_with_the_button(page: Page) -> None:
    ticks = page.locator(".bd-docs-nav .tick")
    for read, name in enumerate(("book/ring", "notebooks/ring"), 1):
        open_page(page, name)
        page.locator("article .at-the-end button").click()
        expect(page.locator(".bd-docs-nav a.current .tick")).to_have_text("✓")
        open_page(page, "book/glossary")
        expect(ticks).to_have_count(read)
        expect(page.locator(".at-the-end")).to_have_count(0)
