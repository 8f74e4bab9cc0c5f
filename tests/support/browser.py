"""A Chromium for the tests of the rendered book.

One browser lives as long as one test module, not the whole run: while Playwright's synchronous
API is open an asyncio loop counts as running, and then nothing else can start one.
"""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

PATIENCE = 120_000  # milliseconds; a busy machine takes its time
expect.set_options(timeout=PATIENCE)

NAMES = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
]
# No sandbox, since CI is often root; the rest keeps the browser from talking to anybody itself.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOW_TO_INSTALL = (
    "no Chromium or Chrome found: `apt-get install chromium` (Debian), "
    "`brew install --cask chromium` (macOS) or "
    "`.venv/bin/playwright install --with-deps chromium` (Ubuntu and others), "
    "or set CHROMIUM to the path of one"
)


def find_chromium(playwright: Playwright) -> str | None:
    """The one that CHROMIUM names, or that Playwright has installed for itself, or the system's."""
    own = playwright.chromium.executable_path
    for name in [os.environ.get("CHROMIUM", ""), own, *NAMES]:
        if name and (path := shutil.which(name)):
            return path
    return None


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
