"""The editor in a browser: Python that runs in the page, and all that can go wrong there."""

import importlib
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from course.interactive.editor import python_script
from course.puzzles.catalog import EDITABLE, PUZZLES
from course.puzzles.judge import run
from course.widgets import editor, stars
from tests.puzzles.answers import LOST, STUBS, WRONG
from tests.support.browser import FORBIDDEN, FULL, browser  # noqa: F401 (a fixture)
from tests.support.pages import (  # noqa: F401 (a fixture)
    PHONE,
    SCRIPTS,
    STYLES,
    Pages,
    site_of_the_book,
)
from tools.work import ROOT

# A machine that is busy with other tests may take longer than a reader's.
PATIENT = 'data-limit="60000"'


def opened(site: Pages, *names: str, limit: str = PATIENT, **options: Any) -> Page:
    """A page with these editors, or with the board of stars too."""
    (site.folder / "_static" / "python.js").write_text(python_script())
    parts = [(editor(name) if name != "stars" else stars())._repr_html_() for name in names]
    body = "".join(parts).replace("data-stars", f"{limit} data-stars")
    return site.open(body, **options)


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"#write-{name}")


def button(shown: Locator, name: str) -> Locator:
    return shown.get_by_role("button", name=name, exact=True)


def edit(page: Page, name: str, code: str | None = None) -> Locator:
    shown = figure(page, name)
    button(shown, "Edit").click()
    if code is not None:
        shown.locator("textarea").fill(code)
    return shown


def ran(shown: Locator) -> Locator:
    """Press Run and wait for the verdict."""
    button(shown, "Run").click()
    verdict = shown.locator(".verdict")
    expect(verdict).to_contain_text(re.compile("Right|Not yet"))
    return verdict


IN_A_WORKER = """async (calls) => {
  const worker = new Worker(URL.createObjectURL(new Blob(minidistPython)));
  const answer = () => new Promise((done, failed) => {
    worker.onmessage = ({ data }) => done(data);
    worker.onerror = ({ message }) => failed(message);
  });
  await answer();
  const reports = [];
  for (const call of calls) {
    const coming = answer();
    worker.postMessage(JSON.stringify(call));
    reports.push(JSON.parse(await coming));
  }
  worker.terminate();
  return reports;
}"""


# Python takes seconds to start in a page: tests of many answers start it once.


def test_the_browser_reports_what_python_reports(site: Pages) -> None:
    """Every answer to everything that can be edited: ours, the first one, and the wrong ones."""
    calls = []
    for name, puzzle in EDITABLE.items():
        task = json.loads(json.dumps(puzzle.task))
        codes = [puzzle.stub, puzzle.solution or puzzle.stub]
        codes += [code for code, _ in WRONG.get(name, []) + LOST.get(name, [])]
        calls += [(code, task) for code in codes]
    page = opened(site)
    page.add_script_tag(path=site.folder / "_static" / "python.js")
    seen = page.evaluate(IN_A_WORKER, calls)
    for (code, task), report in zip(calls, seen, strict=True):
        assert report == json.loads(json.dumps(run(code, task))), code


def test_puzzles_are_solved_in_the_page_and_the_stars_stay(site: Pages) -> None:
    page = opened(site, *PUZZLES)
    for name, puzzle in PUZZLES.items():
        shown = edit(page, name)
        says, earned = STUBS[name]
        expect(ran(shown)).to_contain_text(re.compile(says))
        expect(shown.locator("> figcaption")).to_contain_text("★" * earned + "☆" * (3 - earned))
        shown.locator("textarea").fill(puzzle.solution)
        expect(ran(shown)).to_contain_text("Right.")
        expect(shown.get_by_role("img", name="3 of 3 stars")).to_be_visible()
    page.reload()
    for name, puzzle in PUZZLES.items():
        shown = figure(page, name)
        expect(shown.get_by_role("img", name="3 of 3 stars")).to_be_visible()
        button(shown, "Edit").click()
        expect(shown.locator("textarea")).to_have_value(puzzle.solution)


def test_nothing_is_loaded_before_a_reader_edits_and_python_only_once(site: Pages) -> None:
    page = opened(site, "broadcast", "ring")
    loaded = [Path(url).name for url in site.requests]
    assert sorted(loaded) == sorted(["page.html", *STYLES, *SCRIPTS])
    ran(edit(page, "broadcast"))
    ran(edit(page, "ring"))
    later = [url for url in site.requests if url.startswith("file:")][len(loaded) :]
    files = ["colored.js", "editor.css", "editor.js", "python.js"]
    assert sorted(Path(url).name for url in later) == files


def test_a_schedule_is_priced_and_drawn_for_as_many_ranks_as_one_likes(site: Pages) -> None:
    page = opened(site, "ring")
    shown = edit(page, "ring")
    ran(shown)
    table = shown.get_by_role("group", name="Prices").get_by_role("row")
    expect(table).to_have_count(4)
    expect(table.nth(1)).to_have_text("yours61.5 G846 µs158 µs105 µs")
    drawn = shown.locator("figure.schedule")
    for _ in range(6):
        button(drawn, "Next").click()
    expect(drawn.locator(".count")).to_have_text("16 of 16 complete")
    shown.get_by_label("Ranks shown").select_option("8")
    expect(shown.locator(".rank")).to_have_count(8)
    expect(shown.get_by_role("group", name="Prices")).to_contain_text("8 ranks")


def test_a_schedule_that_fails_is_drawn_until_there(site: Pages) -> None:
    code = EDITABLE["ring"].stub.replace("(0, False)", "(0, True)")
    shown = edit(opened(site, "ring"), "ring", code)
    expect(ran(shown)).to_contain_text("So it counts twice")
    slider = shown.get_by_label("Step", exact=True)
    slider.press("End")
    expect(shown.get_by_role("img", name="a rank is counted twice").first).to_be_visible()


def test_lanes_are_drawn_and_said(site: Pages) -> None:
    shown = edit(opened(site, "fsdp"), "fsdp", PUZZLES["fsdp"].solution)
    ran(shown)
    lanes = shown.locator(".lanes")
    assert "compute: F0 from 2 to 5 ms, F1 from 5 to 8 ms" in (
        lanes.get_attribute("aria-label") or ""
    )
    boxes = lanes.locator(".lane").first.locator("i")
    expect(boxes).to_have_count(8)
    expect(boxes.first).to_have_attribute("style", re.compile(r"^left:4\.7\d*%;width:7\.1\d*%"))


# ---- while one types ----

COLORED = {
    "def f(x): return None": [("k", "def"), ("nf", "f"), ("k", "return"), ("kc", "None")],
    "sum(a.sum, 1e3, defined)  # it's": [("nb", "sum"), ("mi", "1e3"), ("c1", "# it's")],
    "x = f'#' + \"it's\" + r'\\'' + y": [("s2", "f'#'"), ("s2", '"it\'s"'), ("s2", "r'\\''")],
    "'open\nclass A:": [("s2", "'open"), ("k", "class"), ("nf", "A")],
    'a = """two\nlines': [("s2", '"""two\nlines')],
    "<b>&amp;</b>\n\n": [],
}


def test_code_has_colors_letter_for_letter_where_it_is_typed(site: Pages) -> None:
    shown = edit(opened(site, "ring"), "ring")
    box, behind = shown.locator("textarea"), shown.locator(".behind")
    for code, parts in COLORED.items():
        box.fill(code)
        assert behind.text_content() == code
        spans = behind.locator("span").all()
        assert [(each.get_attribute("class"), each.text_content()) for each in spans] == parts
    box.fill("x" * 300 + "\n" * 60 + "#")
    box.evaluate("box => box.scrollTo(120, 300)")
    moved = behind.locator("code")
    expect(moved).to_have_attribute("style", "transform: translate(-120px, -300px);")
    styles = ["font", "lineHeight", "letterSpacing", "tabSize", "paddingLeft", "paddingTop"]
    look = f"it => {styles}.map((name) => getComputedStyle(it)[name])"
    assert box.evaluate(look) == behind.evaluate(look)
    inside = "it => getComputedStyle(it).font"
    assert behind.locator("span").first.evaluate(inside) == box.evaluate(inside)


def test_code_is_judged_while_one_types_without_a_word_on_mistakes(site: Pages) -> None:
    page = opened(site, "broadcast")
    shown = edit(page, "broadcast", "def broadcast(ranks)\n")
    now, verdict = shown.locator(".now"), shown.locator(".verdict")
    expect(now).to_have_text("Not yet, as it stands.")
    expect(now).to_have_attribute("aria-live", "polite")
    expect(shown.locator(".gutter .wrong")).to_have_count(0)
    shown.locator("textarea").fill(PUZZLES["broadcast"].solution)
    expect(now).to_have_text("✓ Right as it stands: press Run.")
    expect(shown.locator("textarea")).to_be_focused()
    expect(verdict).to_be_empty()
    assert "stars" not in json.loads(page.evaluate("localStorage['minidist.puzzles']"))["broadcast"]
    expect(ran(shown)).to_contain_text("Right.")
    expect(now).to_be_empty()


def test_what_never_ends_is_tried_once_and_again_after_a_run(site: Pages) -> None:
    code = EDITABLE["ring"].stub
    shown = edit(opened(site, "ring", limit='data-limit="2000"'), "ring", "while True: pass\n")
    now, box = shown.locator(".now"), shown.locator("textarea")
    expect(now).to_have_text("It does not end, as it stands. Press Run to go on.")
    shown.evaluate("figure => { figure.dataset.limit = 60000; }")
    box.fill(code)
    expect(ran(shown)).to_contain_text("Right.")
    box.fill("x = 1\n")
    expect(now).to_have_text("Not yet, as it stands.")


# ---- what goes wrong ----


def test_an_endless_loop_is_stopped_and_the_next_run_is_as_ever(site: Pages) -> None:
    code = EDITABLE["ring"].stub
    shown = edit(
        opened(site, "ring", limit='data-limit="2000"'), "ring", code + "while True: pass\n"
    )
    expect(ran(shown)).to_contain_text("It ran for two seconds, and was stopped.")
    shown.evaluate("figure => { figure.dataset.limit = 60000; }")
    shown.locator("textarea").fill(code)
    expect(ran(shown)).to_contain_text("Right.")


ERRORS = [
    ("def ring(ranks)\n    yield []\n", "Python cannot read it: expected ':'.", 1),
    ("def ring(ranks):\n    x = 1\n    yield [Sent(0)]\n", "NameError: name 'Sent'", 3),
    ("import nothing\n", "ModuleNotFoundError: No module named 'nothing'", 1),
    ("\n\n\nx = 1 / 0\n", "ZeroDivisionError", 4),
    ("x = 1\n\n  y = 2\nz = 3\n", "Python cannot read it: unexpected indent.", 3),
    ("from math import log\nlog('x')\n", "TypeError", 2),
]


def test_endless_recursion_is_called_so(site: Pages) -> None:
    shown = edit(opened(site, "ring"), "ring", "def ring(ranks):\n    return ring(ranks)\n")
    expect(ran(shown)).to_contain_text("RecursionError: a function calls itself, and never ends.")


def test_an_error_is_shown_at_its_line(site: Pages) -> None:
    shown = edit(opened(site, "ring"), "ring")
    box = shown.locator("textarea")
    for code, says, line in ERRORS:
        box.fill(code)
        expect(ran(shown)).to_contain_text(says)
        expect(shown.locator(".gutter .wrong")).to_have_text(str(line))
        button(shown, f"Line {line}").click()
        selected = box.evaluate("box => box.value.slice(box.selectionStart, box.selectionEnd)")
        assert selected == code.split("\n")[line - 1]


@pytest.mark.parametrize(
    "code",
    [
        "from browser import self\nself.fetch('https://example.org')\n",
        "from browser import self\nself.XMLHttpRequest.new()\n",
        "from browser import ajax\najax.get('https://example.org', blocking=True)\n",
        "from browser import self\nself.importScripts('https://example.org/x.js')\n",
        "from browser import self\nself.WebSocket.new('wss://example.org')\n",
    ],
)
def test_what_runs_reaches_nothing_outside(code: str, site: Pages) -> None:
    shown = edit(opened(site, "ring"), "ring", code)
    expect(ran(shown)).to_contain_text("Not yet")
    expect(shown.locator(".gutter .wrong")).to_have_count(1)


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """An address of this machine, and what has been asked for there: it is given to everybody."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript")
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


WAYS_OUT = {
    "import": "import(at + '/import')",
    "import of text": "import(`data:text/javascript,import '${at}/text'`)",
    "import of a blob": "import(URL.createObjectURL(new Blob([`import '${at}/blob'`],"
    " { type: 'text/javascript' })))",
    "Function": "Function('at', 'return import(at)')(at + '/function')",
    "async Function": "(async () => {}).constructor('at', 'await import(at)')(at + '/async')",
    "FontFace": "new FontFace('its', `url(${at}/font)`).load()",
    "files": "navigator.storage.getDirectory()",
    "room": "navigator.storage.estimate()",
    "databases": "Object.getPrototypeOf(self).indexedDB.databases()",
    "a worker": "new Worker(`${at}/worker`)",
}


def test_what_runs_reaches_no_listener_and_nothing_stored(
    site: Pages, listener: tuple[str, list[str]]
) -> None:
    """The policy of the frame: no way leads out, though each is open to the page itself."""
    address, asked = listener
    page = opened(site, "ring")
    shown, found = edit(page, "ring"), {}
    for name, way in WAYS_OUT.items():
        body = f"self.trial = (async () => {way})()"
        code = f"from browser import self\nself.Function('at', {body!r})('{address}')"
        shown.locator("textarea").fill(code)
        ran(shown)
        (worker,) = page.workers
        found[name] = worker.evaluate(
            "async () => { try { await self.trial; return `open: ${self.trial}`; }"
            " catch { return 'shut'; } finally { self.trial = undefined; } }"
        )
    ring = EDITABLE["ring"]
    drawn = run(ring.stub, json.loads(json.dumps(ring.task)))["drawn"]
    drawn["phases"] = [["forged", f"1;background:url({address}/style)"]]
    forged = json.dumps({"right": True, "says": ["Right"], "marks": [], "drawn": drawn})
    shown.locator("textarea").fill(f"from browser import self\nself.postMessage({forged!r})")
    ran(shown)
    expect(shown.get_by_text("forged", exact=True)).to_be_visible()
    assert page.evaluate(f"fetch('{address}/page').then(({{ status }}) => status)") == 200
    assert asked == ["/page"]
    assert found == dict.fromkeys(WAYS_OUT, "shut")
    site.errors.clear()  # in which the policy speaks
    site.requests[:] = [url for url in site.requests if not url.startswith("http")]


def test_ten_megabytes_of_output_are_cut(site: Pages) -> None:
    code = "line = 'x' * 999\nfor _ in range(10_000):\n    print(line)\n"
    shown = edit(opened(site, "ring"), "ring", code + EDITABLE["ring"].stub)
    expect(ran(shown)).to_contain_text("Right.")
    printed = shown.locator(".result > pre")
    expect(printed).to_contain_text("… and 9,980,000 characters more")
    assert len(printed.inner_text()) < 25_000
    button(shown, "Reset").click()
    expect(printed).to_have_count(0)


# In the page alone: Python's frame has nothing stored.
SPOILED = 'if (self === top) localStorage.setItem("minidist.puzzles", "{not json");'


@pytest.mark.parametrize("before", [FULL, FORBIDDEN], ids=["full", "forbidden"])
def test_it_works_where_nothing_can_be_kept_and_says_so(before: str, site: Pages) -> None:
    page = opened(site, "broadcast", "stars", before=before)
    shown = edit(page, "broadcast", PUZZLES["broadcast"].solution)
    expect(ran(shown)).to_contain_text("This browser keeps nothing here")
    expect(page.locator(".board-of-stars")).to_contain_text("3 of 36")


def test_what_is_kept_may_be_spoiled(site: Pages) -> None:
    page = opened(site, "broadcast", "stars", before=SPOILED)
    expect(page.locator(".board-of-stars")).to_contain_text("0 of 36")
    expect(ran(edit(page, "broadcast"))).to_contain_text("Right.")


@pytest.mark.parametrize("missing", ["python.js", "colored.js", "editor.js", "editor.css"])
def test_a_missing_file_is_said_and_can_be_loaded_later(missing: str, site: Pages) -> None:
    page = opened(site, "broadcast")
    file = site.folder / "_static" / missing
    file.rename(file.with_suffix(".away"))
    shown = edit(page, "broadcast")
    expect(shown.get_by_role("status")).to_contain_text(f"does not load: {missing}.")
    assert all("ERR_FILE_NOT_FOUND" in error for error in site.errors)
    site.errors.clear()
    file.with_suffix(".away").rename(file)
    if missing != "python.js":
        button(shown, "Edit").click()
    expect(ran(shown)).to_contain_text("Right.")


# ---- what is kept, and sent ----


def test_what_one_wrote_stays_and_can_be_reset(site: Pages) -> None:
    page = opened(site, "ring")
    shown = edit(page, "ring", "# mine\n")
    page.reload()
    edit(page, "ring")
    expect(shown.locator("textarea")).to_have_value("# mine\n")
    button(shown, "Reset").click()
    expect(shown.locator("textarea")).to_have_value(EDITABLE["ring"].stub)
    page.reload()
    edit(page, "ring")
    expect(shown.locator("textarea")).to_have_value(EDITABLE["ring"].stub)


def test_a_reset_can_be_undone_and_the_best_answer_comes_back(site: Pages) -> None:
    page = opened(site, "broadcast")
    shown, solution = edit(page, "broadcast", "x = 1"), PUZZLES["broadcast"].solution
    expect(button(shown, "My best answer")).to_be_hidden()
    button(shown, "Reset").click()
    page.keyboard.press("Control+z")
    expect(shown.locator("textarea")).to_have_value("x = 1")
    shown.locator("textarea").fill(solution)
    ran(shown)
    shown.locator("textarea").fill("y = 2")
    page.reload()
    edit(page, "broadcast")
    expect(shown.locator("textarea")).to_have_value("y = 2")
    button(shown, "My best answer").click()
    expect(shown.locator("textarea")).to_have_value(solution)


# The orders in which code might come back as another: each is played out here.


def test_a_button_pressed_twice_while_files_load_brings_one_box(site: Pages) -> None:
    page = opened(site, "ring")
    edit(page, "ring", "# mine\n")
    page.reload()
    twice = "button => { button.click(); button.click(); }"
    button(figure(page, "ring"), "Edit").evaluate(twice)
    box = figure(page, "ring").locator("textarea")
    expect(box).to_have_count(1)
    expect(box).to_have_value("# mine\n")


def test_a_box_of_another_tab_follows_and_does_not_write_over_what_is_newer(site: Pages) -> None:
    here, there = opened(site, "ring"), opened(site, "ring")
    first, second = edit(here, "ring"), edit(there, "ring")
    first.locator("textarea").fill("# mine\n")
    expect(second.locator("textarea")).to_have_value("# mine\n")
    second.locator("textarea").press_sequentially("x")
    expect(first.locator("textarea")).to_have_value(re.compile("x"))


def test_a_report_that_comes_late_keeps_the_code_that_ran(site: Pages) -> None:
    page = opened(site, "broadcast")
    solution = PUZZLES["broadcast"].solution
    shown = edit(page, "broadcast", solution)
    button(shown, "Run").evaluate("button => button.click()")
    shown.locator("textarea").fill("# later\n")
    expect(shown.locator(".verdict")).to_contain_text("Right.")
    kept = json.loads(page.evaluate("localStorage['minidist.puzzles']"))["broadcast"]
    assert kept == {"code": "# later\n", "best": solution, "stars": 3}


def test_all_stars_are_shown_at_once(site: Pages) -> None:
    page = opened(site, "broadcast", "stars")
    board = page.locator(".board-of-stars")
    expect(board.get_by_role("listitem")).to_have_count(12)
    expect(board).to_contain_text("0 of 36")
    ran(edit(page, "broadcast", PUZZLES["broadcast"].solution))
    expect(board).to_contain_text("3 of 36")
    expect(board.get_by_role("img", name="3 of 3 stars")).to_be_visible()
    board.get_by_role("link", name="All-to-all").click()
    assert page.url.endswith("#write-all_to_all")


# ---- who uses it ----


def test_the_keyboard_is_enough(site: Pages) -> None:
    page = opened(site, "ring")
    shown = figure(page, "ring")
    button(shown, "Edit").focus()
    page.keyboard.press("Enter")
    box = shown.locator("textarea")
    expect(box).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("def ring(ranks):\nfor t in (1,):  # a loop\nyield []")
    expect(box).to_have_value("def ring(ranks):\n    for t in (1,):  # a loop\n        yield []")
    page.keyboard.press("Shift+Tab")
    expect(box).to_have_value("def ring(ranks):\n    for t in (1,):  # a loop\n    yield []")
    page.keyboard.press("Tab")
    expect(box).to_have_value("def ring(ranks):\n    for t in (1,):  # a loop\n    yield []    ")
    page.keyboard.press("Control+z")
    expect(box).to_have_value("def ring(ranks):\n    for t in (1,):  # a loop\n    yield []")
    page.keyboard.press("Control+a")
    page.keyboard.press("Tab")
    expect(box).to_have_value(
        "    def ring(ranks):\n        for t in (1,):  # a loop\n        yield []"
    )
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+Enter")
    expect(shown.locator(".verdict")).to_contain_text("Not yet")
    box.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(button(shown, "Run")).to_be_focused()
    box.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Tab")
    expect(box).not_to_be_focused()


def test_without_a_script_it_can_be_read(site: Pages) -> None:
    page = opened(site, "broadcast", java_script_enabled=False)
    expect(page.locator(".plain pre")).to_have_text(PUZZLES["broadcast"].stub)
    page.get_by_text("A solution").click()
    expect(page.get_by_text("distance *= 2")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(theme: str, site: Pages) -> None:
    page = opened(site, "all_reduce", "fsdp", "ring", "stars", theme=theme)
    page.set_viewport_size({"width": PHONE, "height": 800})
    ran(edit(page, "all_reduce"))
    ran(edit(page, "fsdp"))
    ran(edit(page, "ring", "print(1)\nx = y\n"))
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE
    for shown in page.locator(".controls button:visible").all():
        assert shown.evaluate("it => it.getBoundingClientRect().height") >= 44
    figure(page, "fsdp").get_by_text("A solution").click()
    found = Axe().run(page, options={"preload": False})  # it would read the styles again
    assert found.violations_count == 0, found.generate_report()


def test_the_book_has_the_file_that_brings_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
    importlib.import_module("house.python").write(SimpleNamespace(outdir=tmp_path))
    assert (tmp_path / "_static" / "python.js").read_text() == python_script()


def test_a_terminal_gets_a_line() -> None:
    assert repr(editor("broadcast")) == "Broadcast: " + PUZZLES["broadcast"].goal
    assert repr(stars()).startswith("Broadcast, All-gather around a ring, ")
    data: Any = re.search(
        r'<script type="application/json">(.*)</script>', editor("ring")._repr_html_()
    )
    assert json.loads(data[1])["stub"] == EDITABLE["ring"].stub
