"""The book's own search, from file://, where no page can be fetched."""

import re

import pytest
from playwright.sync_api import Browser

from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)
from tools.book import BUILD, up_to_date


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("ring all-reduce", "book/ring.html"),
        ("prefetch", "book/glossary.html"),
        ("fully_shard", "book/api/calls.html"),
        ("saw-tooth", "notebooks/fsdp.html"),
        ("learning rate", "book/feeding.html"),
    ],
)
def test_what_is_searched_for_comes_first(browser: Browser, query: str, page: str) -> None:  # noqa: F811
    assert up_to_date(), "the book is not built from the present sources: run `make book` first"
    tab = new_page(browser)
    errors: list[str] = []
    tab.on("console", lambda said: errors.extend([said.text] * (said.type == "error")))
    tab.goto(f"{(BUILD / 'html' / 'search.html').as_uri()}?q={query.replace(' ', '+')}")
    tab.wait_for_selector("#search-results li a")
    first = tab.eval_on_selector("#search-results li a", "link => link.href")
    tab.wait_for_selector("#search-results .excerpt mark")
    marked = tab.locator("#search-results .excerpt mark").all_inner_texts()
    assert {word.lower() for word in marked} <= {*re.split(r"[\s-]+", query)}
    tab.close()
    assert f"/html/{page}" in first
    assert errors == []
