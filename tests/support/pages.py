"""Opens HTML from a file, as a reader would, and hears of all that goes wrong in it."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
import yaml
from playwright.sync_api import Browser, BrowserContext, Page

from course.interactive.compiled import script
from course.interactive.page import COMPILED
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)
from tools.work import ROOT

PHONE, DESK = 390, 1280
BOOK = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["config"]
STYLES = [*BOOK["html_css_files"]]
SCRIPTS = [name for name, _ in BOOK["html_js_files"]]


class Pages:
    """Opens HTML from a file in pages that report what goes wrong in them."""

    def __init__(self, browser: Browser, folder: Path, head: str = "") -> None:  # noqa: F811
        self.browser, self.folder, self.head = browser, folder, head
        self.errors: list[str] = []
        self.requests: list[str] = []

    def context(self, **options: bool) -> BrowserContext:
        """One for all pages without options of their own: a context costs more than a page."""
        known = [] if options else self.browser.contexts
        return next(iter(known), None) or self.browser.new_context(
            reduced_motion="reduce", **options
        )

    def address(self, name: str) -> str:
        return (self.folder / f"{name}.html").as_uri()

    def write(self, body: str, theme: str = "light", name: str = "page") -> None:
        path = self.folder / f"{name}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width"><title>A page</title>'
            f'{self.head}</head><body style="margin: 0; font-family: sans-serif">'
            f'<main style="padding: 16px"><h1>A page</h1>{body}</main></body></html>'
        )

    def new_page(self, width: int = DESK, before: str = "", **options: bool) -> Page:
        """An empty page; `before` is a script that each page runs before its own."""
        page = new_page(self.context(**options))
        page.set_viewport_size({"width": width, "height": 800})
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        if before:
            page.add_init_script(before)
        return page

    def open(
        self,
        body: str,
        width: int = DESK,
        theme: str = "light",
        *,
        name: str = "page",
        before: str = "",
        **options: bool,
    ) -> Page:
        self.write(body, theme, name)
        page = self.new_page(width, before, **options)
        page.goto(self.address(name))
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


@pytest.fixture(name="site")
def site_of_the_book(browser: Browser, tmp_path: Path) -> Iterator[Pages]:  # noqa: F811
    """Pages with the styles and scripts of the book's, and a browser that has kept nothing yet."""
    static = tmp_path / "_static"
    for source in BOOK["html_static_path"]:
        copytree(ROOT / source, static, dirs_exist_ok=True)
    (static / COMPILED).write_text(script())
    styles = (f'<link rel="stylesheet" href="{static.as_uri()}/{name}">' for name in STYLES)
    scripts = (f'<script defer src="{static.as_uri()}/{name}"></script>' for name in SCRIPTS)
    site = Pages(browser, tmp_path, "".join((*styles, *scripts)))
    site.context()
    yield site
    for context in browser.contexts:
        context.close()
    assert site.errors == []
    assert {url.split(":")[0] for url in site.requests} <= {"file", "blob"}
