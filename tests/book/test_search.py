"""The book's own search, from file://, where no page can be fetched."""

from urllib.parse import quote_plus

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.book.rendered import HTML
from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("book_is_built")

FIRST = {
    "ring all-reduce": "book/ring.html",
    "what is a ring": "book/ring.html",
    "prefetch": "book/fsdp.html",
    "fully_shard": "book/api/calls.html",
    "saw-tooth": "notebooks/fsdp.html",
    "learning rate": "book/feeding.html",
    "expert parallelism MoE": "book/experts.html",
    "how does fsdp work": "book/fsdp.html",
    "ddp": "book/ddp.html",
    "gradient clipping": "book/fsdp_practice.html",
    "out of memory": "book/memory.html",
    "mixed torch.Tensor and DTensor": "book/errors.html#got-mixed-torch-tensor-and-dtensor",
    "frobnicated prefetch": "book/fsdp.html",  # of which no page has all
}
LOADING = "Error(s) in loading state_dict for Net: "
PASTED = {  # what is pasted, and how the address of its entry begins
    "[rank3]: RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
    "1800000ms for recv operation to complete": "timed-out-waiting-ms-for-recv",
    "[rank0]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466, "
    "NumelOut=466, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.": "watchdog",
    "[rank1]: DistBackendError: Connection reset by peer": "connection-reset-by-peer",
    "BrokenPipeError: [Errno 32] Broken pipe": "failed-to-recv-got-0-bytes",
    "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, "
    "unhandled system error, NCCL version 2.14.3": "ncclsystemerror",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
    "device error.": "ncclsystemerror",
    "ncclUnhandledCudaError: Call to CUDA function failed.": "ncclunhandledcudaerror",
    "ncclInternalError: Internal check failed.": "ncclunhandledcudaerror",
    "n1:12:34 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found": "bootstrap",
    "RuntimeError: CUDA error: an illegal memory access was encountered": "cuda-error-an-illegal",
    "ModuleNotFoundError: No module named 'minidist'": "modulenotfounderror",
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
    "[10.0.3.7]:44423": "connection-closed-by-peer",
    f'{LOADING}Missing key(s) in state_dict: "layers.0.weight".': "missing-key-s-in-state-dict",
    f'{LOADING}Unexpected key(s) in state_dict: "module.w".': "unexpected-key-s-in-state-dict-m",
    f'{LOADING}Unexpected key(s) in state_dict: "_orig_mod.b".': "unexpected-key-s-in-state-dict-m",
    "_orig_mod": "unexpected-key-s-in-state-dict-m",
    "_pickle.PicklingError: Can't pickle <class '__main__.Batch'>: attribute lookup Batch on "
    "__main__ failed": "can-t-pickle",
    "AssertionError: FSDP reduce-scatter expects uniform gradient dtype but got "
    "{torch.bfloat16, torch.float32}": "fsdp-reduce-scatter-expects",
    "FSDP expects uniform original parameter dtype but got {torch.float32}": "fsdp-expects-uniform",
    "RuntimeError: one of the variables needed for gradient computation has been modified by an "
    "inplace operation: [torch.FloatTensor [4, 4]] is at version 2": "has-been-modified-by-an",
    "Optimizer state has not been consolidated on this rank. Please call "
    "`consolidate_state_dict(to=0)` on all ranks beforehand": "optimizer-state-has-not-been",
    "ValueError: fully_shard doesn't support scalar parameters. Change scale": "fully-shard-doesn",
    "AssertionError: No inf checks were recorded for this optimizer.": "no-inf-checks",
    "OSError: [Errno 98] Address already in use": "the-server-socket-has-failed",
    "EADDRINUSE": "the-server-socket-has-failed",
    "out of memory": "cuda-out-of-memory",
    "ring all-reduce over eight ranks": "",
    "fully_shard": "",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)": "",
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
        if f"/{page}" not in first:
            offenders.append(f"{query}: {first}")
        tab.wait_for_selector("#search-results .excerpt mark")
        marked = {each.lower() for each in tab.locator(".excerpt mark").all_inner_texts()}
        if marked & {"network", "of", "does"}:
            offenders.append(f"{query}: marked are {marked}")
    assert not offenders, "\n".join(offenders)


def test_a_pasted_message_is_found_whatever_came_with_it(tab: Page) -> None:
    search(tab, "ring")
    explain = (
        "lines => lines.map((line) => minidistFinder.explain(line, searchMessages)[0]?.[0] ?? '')"
    )
    found = dict(zip(PASTED, tab.evaluate(explain, [*PASTED]), strict=True))
    offenders = {
        line: to for line, to in found.items() if not to.startswith(PASTED[line] or "none")
    }
    assert {line: to for line, to in offenders.items() if to or PASTED[line]} == {}
    page = (HTML / "book" / "errors.html").read_text()
    assert [to for to in found.values() if to and f'id="{to}"' not in page] == []


def test_every_entry_finds_itself(tab: Page) -> None:
    search(tab, "ring")
    script = """() => Object.entries(searchMessages).flatMap(([id, { lines }]) => lines
      .filter((line) => minidistFinder.explain(line, searchMessages)[0]?.[0] !== id))"""
    assert tab.evaluate(script) == []


def test_an_explanation_has_two_sentences_and_what_is_not_explained_is_said(tab: Page) -> None:
    search(tab, "[rank1]: Connection reset by peer")
    says = tab.locator("p.message + p.excerpt").inner_text()
    assert says.startswith("While ranks meet, another program listens")
    assert says.endswith("Later, this is usually the echo of a rank’s death.")
    search(tab, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")
    said = tab.locator("p.message").all_inner_texts()
    assert said[0] == "This message is not among the error messages that the book explains."
    assert said[1].startswith("No page has all of these words. These pages")
    search(tab, "ring")
    assert tab.locator("p.message").count() == 0


@pytest.mark.parametrize(("query", "words"), [("frobnicated prefetch", "all"), ("qwxz", "any")])
def test_where_no_page_has_all_words_the_error_messages_are_a_click_away(
    tab: Page, query: str, words: str
) -> None:
    search(tab, query)
    said = tab.locator("p.message")
    expect(said).to_contain_text(f"No page has {words} of these words.")
    expect(said.get_by_role("link")).to_have_attribute("href", "book/errors.html")


TYPED = {  # what is typed, a part of a word, a message; and where the first result leads
    "prefet": "book/fsdp.html",
    "how does fsdp wo": "book/fsdp.html",
    "[rank1]: Connection reset by peer": "book/errors.html#connection-reset-by-peer",
}


def test_results_come_while_one_types_and_nothing_is_loaded_before(tab: Page) -> None:
    loaded: list[str] = []
    tab.on("request", lambda it: loaded.append(it.url.rsplit("/", 1)[1].partition("?")[0]))
    for page in ("book/ring.html", "search.html"):
        tab.goto((HTML / page).as_uri())
        if page != "search.html":
            assert not {"search_texts.js", "searchindex.js", "finder.js"} & {*loaded}
            tab.keyboard.press("Control+k")
        field = tab.locator("form.bd-search:visible input")
        for query, to in TYPED.items():
            field.fill("")
            expect(tab.locator("ul.typed:visible")).to_have_count(0)
            field.press_sequentially(query)
            first = tab.locator("ul.typed:visible a").first
            expect(first).to_have_attribute("href", f"{'../' * page.count('/') or './'}{to}")


def test_what_was_found_before_goes_while_one_types(tab: Page) -> None:
    search(tab, "ring")
    tab.wait_for_selector("#search-results li a")
    tab.locator("form.bd-search:visible input").fill("prefetch")
    expect(tab.locator("ul.typed:visible li")).not_to_have_count(0)
    expect(tab.locator("#search-results")).to_be_hidden()
