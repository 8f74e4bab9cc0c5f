"""The book's own search, from file://, where no page can be fetched."""

import re
from urllib.parse import quote_plus

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
        ("mixed torch.Tensor and DTensor", "book/errors.html#got-mixed-torch-tensor-and-dtensor"),
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
    assert {word.lower() for word in marked} <= {*re.split(r"[\s-]+", query.lower())}
    tab.close()
    assert f"/html/{page}" in first
    assert errors == []


@pytest.mark.parametrize(
    ("pasted", "anchor"),
    [
        (
            "[rank3]: RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
            "1800000ms for recv operation to complete",
            "timed-out-waiting-ms-for-recv-operation-to-complete",
        ),
        (
            "[rank0]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466, "
            "NumelOut=466, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
            "watchdog-caught-collective-operation-timeout-worknccl-seqnum-optype-allreduce",
        ),
        ("ring all-reduce over eight ranks", None),
    ],
)
def test_a_pasted_message_is_found_whatever_came_with_it(
    browser: Browser,  # noqa: F811
    pasted: str,
    anchor: str | None,
) -> None:
    assert up_to_date(), "the book is not built from the present sources: run `make book` first"
    tab = new_page(browser)
    tab.goto(f"{(BUILD / 'html' / 'search.html').as_uri()}?q={quote_plus(pasted)}")
    tab.wait_for_selector("#search-results .search-summary", state="attached")
    links = tab.eval_on_selector_all("p.message a", "links => links.map((link) => link.href)")
    tab.close()
    assert [each.partition("#")[2] for each in links[:1]] == ([anchor] if anchor else [])
    if anchor:
        assert f'id="{anchor}"' in (BUILD / "html" / "book" / "errors.html").read_text()
