"""The Chromium that prints the book and in which its pages are tested."""

import os
import shutil

from playwright.sync_api import Playwright

PATIENCE = 120_000  # milliseconds; a busy machine takes its time
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
