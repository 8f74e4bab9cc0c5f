"""The editor in a browser: Python that runs in the page, and all that can go wrong there."""

import importlib
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from course.puzzles.catalog import EDITABLE, PUZZLES
from course.puzzles.judge import run
from course.widgets import editor, stars
from course.widgets.editor import python_script
from tests.puzzles.answers import STUBS, WRONG
from tests.support.browser import (  # noqa: F401 (a fixture)
    FORBIDDEN,
    FULL,
    browser,
    new_page,
)
from tests.support.pages import PHONE
from tools.work import ROOT

# A machine that is busy with other tests may take longer than a reader's.
PATIENT = 'data-limit="60000"'
SERVED = """\
<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>A page</title>
{styles}{scripts}</head>
<body style="margin: 0; color-scheme: {theme}; background: Canvas; color: CanvasText">
<main><h1>A page</h1>
{body}</main></body></html>
"""
STYLES, SCRIPTS = (
    ("widget.css", "widgets.css", "editor.css"),
    ("player.js", "stepper.js", "editor.js"),
)


class Site:
    """A folder as the book has it, and pages of it in a browser."""

    def __init__(self, browser: Browser, folder: Path) -> None:  # noqa: F811
        self.browser, self.folder = browser, folder
        self.errors: list[str] = []
        self.requests: list[str] = []
        if (folder / "python.js").exists():
            return
        for package in ("minidist.plots", "course.widgets"):
            for file in (files(package) / "static").iterdir():
                (folder / file.name).write_text(file.read_text("utf-8"))
        (folder / "python.js").write_text(python_script())

    def open(
        self,
        *names: str,
        theme: str = "light",
        hash_: str = "",
        before: str = "",
        limit: str = PATIENT,
    ) -> Page:
        """A page with these editors, or with the board of stars too."""
        parts = [(editor(name) if name != "stars" else stars())._repr_html_() for name in names]
        body = "".join(parts).replace("data-stars", f"{limit} data-stars")
        styles = "".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
        scripts = "".join(f'<script defer src="{name}"></script>' for name in SCRIPTS)
        (self.folder / "page.html").write_text(
            SERVED.format(theme=theme, styles=styles, scripts=scripts, body=body)
        )
        page = new_page(self.browser, reduced_motion="reduce")
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        if before:
            page.add_init_script(before)
        page.goto((self.folder / "page.html").as_uri() + hash_)
        return page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture
def site(browser: Browser, folder: Path) -> Iterator[Site]:  # noqa: F811
    site = Site(browser, folder)
    yield site
    for context in browser.contexts:
        context.close()
    assert site.errors == []
    assert {url.split(":")[0] for url in site.requests} <= {"file", "blob"}


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


@pytest.mark.parametrize("name", EDITABLE)
def test_the_browser_reports_what_python_reports(name: str, site: Site) -> None:
    """Every answer: ours, the one it begins with, and the wrong ones."""
    puzzle = EDITABLE[name]
    task = json.loads(json.dumps(puzzle.task()))
    codes = [
        puzzle.stub,
        puzzle.solution or puzzle.stub,
        *(code for code, _ in WRONG.get(name, [])),
    ]
    page = site.open()
    page.add_script_tag(path=site.folder / "python.js")
    seen = page.evaluate(IN_A_WORKER, [[code, task] for code in codes])
    for code, report in zip(codes, seen, strict=True):
        assert report == json.loads(json.dumps(run(code, task))), code


@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_is_solved_in_the_page_and_the_stars_stay(name: str, site: Site) -> None:
    page = site.open(name)
    shown = edit(page, name)
    says, earned = STUBS[name]
    expect(ran(shown)).to_contain_text(says)
    expect(shown.locator("> figcaption")).to_contain_text("★" * earned + "☆" * (3 - earned))
    shown.locator("textarea").fill(PUZZLES[name].solution)
    expect(ran(shown)).to_contain_text("Right.")
    expect(shown.get_by_role("img", name="3 of 3 stars")).to_be_visible()
    page.reload()
    expect(shown.get_by_role("img", name="3 of 3 stars")).to_be_visible()
    button(shown, "Edit").click()
    expect(shown.locator("textarea")).to_have_value(PUZZLES[name].solution)


def test_nothing_is_loaded_before_a_reader_edits_and_python_only_once(site: Site) -> None:
    page = site.open("broadcast", "ring")
    loaded = [Path(url).name for url in site.requests]
    assert sorted(loaded) == sorted(["page.html", *STYLES, *SCRIPTS])
    ran(edit(page, "broadcast"))
    ran(edit(page, "ring"))
    later = [url for url in site.requests if url.startswith("file:")][len(loaded) :]
    assert [Path(url).name for url in later] == ["python.js"]


def test_what_pages_carry_that_nobody_edits_is_small() -> None:
    static = files("course.widgets") / "static"
    assert sum(len((static / f"editor.{kind}").read_bytes()) for kind in ("js", "css")) < 30_000


def test_a_schedule_is_priced_and_drawn_for_as_many_ranks_as_one_likes(site: Site) -> None:
    page = site.open("ring")
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


def test_a_schedule_that_fails_is_drawn_until_there(site: Site) -> None:
    code = EDITABLE["ring"].stub.replace("(0, False)", "(0, True)")
    shown = edit(site.open("ring"), "ring", code)
    expect(ran(shown)).to_contain_text("So it counts twice")
    slider = shown.get_by_label("Step", exact=True)
    slider.press("End")
    expect(shown.get_by_role("img", name="a rank is counted twice").first).to_be_visible()


def test_lanes_are_drawn_and_said(site: Site) -> None:
    shown = edit(site.open("fsdp"), "fsdp", PUZZLES["fsdp"].solution)
    ran(shown)
    lanes = shown.locator(".lanes")
    assert "compute: F0 from 2 to 5 ms, F1 from 5 to 8 ms" in (
        lanes.get_attribute("aria-label") or ""
    )
    boxes = lanes.locator(".strip").first.locator("i")
    expect(boxes).to_have_count(8)
    expect(boxes.first).to_have_attribute("style", re.compile(r"^left: 4\.7\d+%; width: 7\.1\d+%"))


# ---- what goes wrong ----


def test_an_endless_loop_is_stopped_and_the_next_run_is_as_ever(site: Site) -> None:
    code = EDITABLE["ring"].stub
    shown = edit(site.open("ring", limit='data-limit="2000"'), "ring", code + "while True: pass\n")
    expect(ran(shown)).to_contain_text("It ran for two seconds, and was stopped.")
    shown.evaluate("figure => { figure.dataset.limit = 60000; }")
    shown.locator("textarea").fill(code)
    expect(ran(shown)).to_contain_text("Right.")


@pytest.mark.parametrize(
    ("code", "says", "line"),
    [
        ("def ring(ranks)\n    yield []\n", "Python cannot read it: expected ':'.", 1),
        ("def ring(ranks):\n    x = 1\n    yield [Sent(0)]\n", "NameError: name 'Sent'", 3),
        ("import nothing\n", "ModuleNotFoundError: No module named 'nothing'", 1),
        ("\n\n\nx = 1 / 0\n", "ZeroDivisionError", 4),
        ("x = 1\n\n  y = 2\nz = 3\n", "Python cannot read it: unexpected indent.", 3),
        ("from math import log\nlog('x')\n", "TypeError", 2),
    ],
)
def test_an_error_is_shown_at_its_line(code: str, says: str, line: int, site: Site) -> None:
    page = site.open("ring")
    shown = edit(page, "ring", code)
    expect(ran(shown)).to_contain_text(says)
    expect(shown.locator(".gutter .wrong")).to_have_text(str(line))
    button(shown, f"Line {line}").click()
    selected = shown.locator("textarea").evaluate(
        "box => box.value.slice(box.selectionStart, box.selectionEnd)"
    )
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
def test_what_runs_reaches_nothing_outside(code: str, site: Site) -> None:
    shown = edit(site.open("ring"), "ring", code)
    expect(ran(shown)).to_contain_text("Not yet")
    expect(shown.locator(".gutter .wrong")).to_have_count(1)


def test_ten_megabytes_of_output_are_cut(site: Site) -> None:
    code = "line = 'x' * 999\nfor _ in range(10_000):\n    print(line)\n"
    shown = edit(site.open("ring"), "ring", code + EDITABLE["ring"].stub)
    expect(ran(shown)).to_contain_text("Right.")
    printed = shown.locator(".result > pre")
    expect(printed).to_contain_text("… and 9,980,000 characters more")
    assert len(printed.inner_text()) < 25_000
    button(shown, "Reset").click()
    expect(printed).to_have_count(0)


SPOILED = 'localStorage.setItem("minidist.puzzles", "{not json");'


@pytest.mark.parametrize("before", [FULL, FORBIDDEN], ids=["full", "forbidden"])
def test_it_works_where_nothing_can_be_kept_and_says_so(before: str, site: Site) -> None:
    page = site.open("broadcast", "stars", before=before)
    shown = edit(page, "broadcast", PUZZLES["broadcast"].solution)
    expect(ran(shown)).to_contain_text("This browser keeps nothing here")
    expect(page.locator(".board-of-stars")).to_contain_text("3 of 36")


def test_what_is_kept_may_be_spoiled(site: Site) -> None:
    page = site.open("broadcast", "stars", before=SPOILED)
    expect(page.locator(".board-of-stars")).to_contain_text("0 of 36")
    expect(ran(edit(page, "broadcast"))).to_contain_text("Right.")


def test_a_missing_file_is_said(site: Site) -> None:
    (site.folder / "python.js").unlink()
    page = site.open("broadcast")
    shown = edit(page, "broadcast")
    expect(shown.locator(".verdict")).to_contain_text("python.js")
    assert any("ERR_FILE_NOT_FOUND" in error for error in site.errors)
    site.errors.clear()


# ---- what is kept, and sent ----


def test_what_one_wrote_stays_and_can_be_reset(site: Site) -> None:
    page = site.open("ring")
    shown = edit(page, "ring", "# mine\n")
    page.reload()
    edit(page, "ring")
    expect(shown.locator("textarea")).to_have_value("# mine\n")
    button(shown, "Reset").click()
    expect(shown.locator("textarea")).to_have_value(EDITABLE["ring"].stub)
    page.reload()
    edit(page, "ring")
    expect(shown.locator("textarea")).to_have_value(EDITABLE["ring"].stub)


def test_a_link_of_someone_else_shows_its_code_and_runs_when_told_to(site: Site) -> None:
    code = "# für dich: ⌈log₂ N⌉ \U0001f600\n" + PUZZLES["broadcast"].solution
    shown = edit(site.open("broadcast"), "broadcast", code)
    button(shown, "Share link").click()
    link = shown.get_by_label("Link to this code").input_value()
    assert re.fullmatch(r"file:///.*/page\.html#code=broadcast\.[\w-]+", link)
    site.requests.clear()
    page = site.open("broadcast", "ring", hash_="#" + link.split("#")[1])
    shown = figure(page, "broadcast")
    expect(shown.locator("textarea")).to_have_value(code)
    expect(shown.locator(".verdict")).to_contain_text("It runs when you press Run")
    expect(figure(page, "ring").locator("textarea")).to_have_count(0)
    assert not any(url.endswith("python.js") for url in site.requests)
    expect(ran(shown)).to_contain_text("Right.")
    expect(shown.get_by_role("img", name="0 of 3 stars")).to_be_visible()  # not the reader's own
    button(shown, "Reset").click()
    expect(shown.locator("textarea")).to_have_value(PUZZLES["broadcast"].stub)


@pytest.mark.parametrize(
    "hash_", ["#code=broadcast.%%%", "#code=broadcast._w", "#code=other.AAAA", "#x"]
)
def test_a_link_that_means_nothing_does_nothing(hash_: str, site: Site) -> None:
    page = site.open("broadcast", hash_=hash_)
    expect(button(figure(page, "broadcast"), "Edit")).to_be_visible()


def test_stars_are_shown_exported_and_imported(site: Site, tmp_path: Path) -> None:
    page = site.open("broadcast", "stars")
    board = page.locator(".board-of-stars")
    expect(board.get_by_role("listitem")).to_have_count(12)
    expect(board).to_contain_text("0 of 36")
    ran(edit(page, "broadcast", PUZZLES["broadcast"].solution))
    expect(board).to_contain_text("3 of 36")
    with page.expect_download() as download:
        button(board, "Export").click()
    download.value.save_as(tmp_path / "stars.json")
    kept = json.loads((tmp_path / "stars.json").read_text())
    assert kept == {"broadcast": {"code": PUZZLES["broadcast"].solution, "stars": 3}}
    page.context.close()
    page = site.open("broadcast", "stars")  # another browser
    board = page.locator(".board-of-stars")
    expect(board).to_contain_text("0 of 36")
    read = board.get_by_label("File with stars")
    read.set_input_files(tmp_path / "stars.json")
    expect(board).to_contain_text("3 of 36")
    edit(page, "broadcast")
    box = figure(page, "broadcast").locator("textarea")
    expect(box).to_have_value(PUZZLES["broadcast"].solution)
    for text in ("no json", "null", '{"broadcast": 3}', '{"ring": {"code": 1, "stars": "x"}}'):
        (tmp_path / "bad.json").write_text(text)
        read.set_input_files(tmp_path / "bad.json")
    expect(box).to_have_value(PUZZLES["broadcast"].solution)
    board.get_by_role("link", name="All-to-all").click()
    assert page.url.endswith("#write-all_to_all")


# ---- who uses it ----


def test_the_keyboard_is_enough(site: Site) -> None:
    page = site.open("ring")
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


def test_without_a_script_it_can_be_read(browser: Browser, site: Site) -> None:  # noqa: F811
    site.open("broadcast")
    page = new_page(browser, java_script_enabled=False)
    page.goto((site.folder / "page.html").as_uri())
    expect(page.locator(".plain pre")).to_have_text(PUZZLES["broadcast"].stub)
    page.get_by_text("A solution").click()
    expect(page.get_by_text("distance *= 2")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(theme: str, site: Site) -> None:
    page = site.open("all_reduce", "fsdp", "ring", "stars", theme=theme)
    page.set_viewport_size({"width": PHONE, "height": 800})
    ran(edit(page, "all_reduce"))
    ran(edit(page, "fsdp"))
    ran(edit(page, "ring", "print(1)\nx = y\n"))
    button(figure(page, "ring"), "Share link").click()
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
