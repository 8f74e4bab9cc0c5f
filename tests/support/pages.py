"""Opens HTML from a file, as a reader would, and hears of all that goes wrong in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

PHONE, DESK = 390, 1280


class Pages:
    """Opens HTML from a file in pages that report what goes wrong in them."""

    def __init__(self, browser: Browser, folder: Path) -> None:  # noqa: F811
        self.browser, self.folder = browser, folder
        self.errors: list[str] = []

    def context(self, **options: bool) -> BrowserContext:
        """One for all pages without options of their own: a context costs more than a page."""
        known = [] if options else self.browser.contexts
        return next(iter(known), None) or self.browser.new_context(
            reduced_motion="reduce", **options
        )

    def open(self, body: str, width: int = DESK, theme: str = "light", **options: bool) -> Page:
        path = self.folder / "page.html"
        path.write_text(
            f'<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width"><title>A page</title></head>'
            '<body style="margin: 0; font-family: sans-serif">'
            f'<main style="padding: 16px"><h1>A page</h1>{body}</main></body></html>'
        )
        page = new_page(self.context(**options))
        page.set_viewport_size({"width": width, "height": 800})
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.goto(path.as_uri())
        return page


@pytest.fixture
def pages(browser: Browser, tmp_path: Path) -> Iterator[Pages]:  # noqa: F811
    pages = Pages(browser, tmp_path)
    pages.context()
    before = [page for context in browser.contexts for page in context.pages]
    yield pages
    for context in browser.contexts[1:]:
        context.close()
    for page in browser.contexts[0].pages:
        if page not in before:
            page.close()
    assert pages.errors == []
