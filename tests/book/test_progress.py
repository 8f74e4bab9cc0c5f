"""The theme's contents at the side of a built page carry the ticks of what was read."""

import pytest
from playwright.sync_api import Browser, Page, expect

from course.pages.path import path
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)
from tools.book import BUILD, up_to_date

HTML = BUILD / "html"
WORK = [
    name
    for each in path()
    for name in (f"book/{each.page}", *(f"notebooks/{lab.name}" for lab in each.labs))
]


@pytest.fixture(autouse=True, scope="module")
def book_is_built() -> None:
    if not up_to_date():
        pytest.fail("the book is not built from the present sources: run `make book` first")


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


@pytest.mark.parametrize("name", ["book/ring", "notebooks/ring"])
def test_a_chapter_and_a_lab_end_with_the_button(name: str, page: Page) -> None:
    open_page(page, name)
    page.locator("article .at-the-end button").click()
    here = page.locator(".bd-docs-nav a.current .tick")
    expect(here).to_have_text("✓")
    open_page(page, "book/glossary")
    expect(page.locator(".bd-docs-nav .tick")).to_have_count(1)
    expect(page.locator(".at-the-end")).to_have_count(0)
