"""A Chromium for the tests of the rendered book.

One browser lives as long as one test module, not the whole run: while Playwright's synchronous
API is open an asyncio loop counts as running, and then nothing else can start one.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tools.chromium import FLAGS, HOW_TO_INSTALL, PATIENCE, find_chromium

expect.set_options(timeout=PATIENCE)

# Scripts for `add_init_script`: a browser that has no room left, or keeps nothing for pages.
FULL = (
    """Storage.prototype.setItem = () => { throw new DOMException("", "QuotaExceededError"); };"""
)
FORBIDDEN = """Object.defineProperty(window, "localStorage", {
  get() { throw new DOMException("", "SecurityError"); } });"""


def new_page(browser: Browser | BrowserContext, **options: Any) -> Page:
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(HOW_TO_INSTALL)
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE)
        yield chromium
        chromium.close()
