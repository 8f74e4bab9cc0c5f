"""The book's own search, from file://, where no page can be fetched."""

import re
from urllib.parse import quote_plus

import pytest
from playwright.sync_api import Browser, Page

from tests.book.rendered import HTML
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("book_is_built")

FIRST = {
    "ring all-reduce": "book/ring.html",
    "prefetch": "book/glossary.html",
    "fully_shard": "book/api/calls.html",
    "saw-tooth": "notebooks/fsdp.html",
    "learning rate": "book/feeding.html",
    "mixed torch.Tensor and DTensor": "book/errors.html#got-mixed-torch-tensor-and-dtensor",
}
PASTED = {
    "[rank3]: RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
    "1800000ms for recv operation to complete": [
        "timed-out-waiting-ms-for-recv-operation-to-complete"
    ],
    "[rank0]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466, "
    "NumelOut=466, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.": [
        "watchdog-caught-collective-operation-timeout-worknccl-seqnum-optype-allreduce"
    ],
    "ring all-reduce over eight ranks": [],
}


@pytest.fixture
def tab(browser: Browser) -> Page:  # noqa: F811
    return new_page(browser)


def search(tab: Page, query: str) -> None:
    tab.goto(f"{(HTML / 'search.html').as_uri()}?q={quote_plus(query)}")
    tab.wait_for_selector("#search-results .search-summary", state="attached")


def test_what_is_searched_for_comes_first(tab: Page) -> None:
    offenders: list[str] = []
    tab.on("console", lambda said: offenders.extend([said.text] * (said.type == "error")))
    for query, page in FIRST.items():
        search(tab, query)
        tab.wait_for_selector("#search-results li a")
        first = tab.eval_on_selector("#search-results li a", "link => link.href")
        if f"/html/{page}" not in first:
            offenders.append(f"{query}: {first}")
        tab.wait_for_selector("#search-results .excerpt mark")
        marked = {each.lower() for each in tab.locator(".excerpt mark").all_inner_texts()}
        if more := marked - {*re.split(r"[\s-]+", query.lower())}:
            offenders.append(f"{query}: marked are {more}")
    assert not offenders, "\n".join(offenders)


def test_a_pasted_message_is_found_whatever_came_with_it(tab: Page) -> None:
    found = {}
    for pasted in PASTED:
        search(tab, pasted)
        links = tab.eval_on_selector_all("p.message a", "links => links.map((link) => link.href)")
        found[pasted] = [each.partition("#")[2] for each in links[:1]]
    assert found == PASTED
    page = (HTML / "book" / "errors.html").read_text()
    assert [
        each for anchor in PASTED.values() for each in anchor if f'id="{each}"' not in page
    ] == []
