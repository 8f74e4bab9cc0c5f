"""What a reader has read and done: the list, the ticks in the contents, and what is kept."""

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from course.pages.path import path
from course.project.report import TARGETS
from course.verdict import Verdict
from course.widgets import progress
from tests.support.browser import (  # noqa: F401 (a fixture)
    FORBIDDEN,
    FULL,
    browser,
    new_page,
)
from tests.support.pages import PHONE

CHAPTERS = path()
LABS = [lab for chapter in CHAPTERS for lab in chapter.labs]
NAMES = {
    **{f"book/{each.page}": f"{n}. {each.title}" for n, each in enumerate(CHAPTERS, 1)},
    **{f"notebooks/{lab.name}": lab.title for lab in LABS},
    "book/progress": "Your progress",
    "book/puzzles": "Puzzles",
}
STYLES, SCRIPTS = ("widget.css", "widgets.css", "progress.css"), ("player.js", "progress.js")
PAGE = """\
<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>A page</title>
{head}</head><body style="margin: 0; color-scheme: {theme}; background: Canvas; color: CanvasText">
<nav class="bd-docs-nav" aria-label="Main"><ul>{contents}</ul></nav>
<main><article class="bd-article"><h1>A page</h1>{body}</article></main></body></html>
"""
SPOILED = ["{not json", "null", "3", '"text"', "[1]", '{"done": 1}', '{"done": ["x"]}']
REPORT = """\
ring: Correct for all three collectives, on 1 to 5 ranks.

| code of | messages |
|---|---|
| yourself | 6 |

DDP, per parameter: Correct. It trains 5 models.
DDP, flat: Correct. It trains 5 models.
DDP, bucketed: Wrong. The result is right, in 9 calls a step; 3 are enough.
ZeRO-1: Not yet. Write it.
something else: Correct. It is no milestone.
3 of 5. Next: DDP, bucketed.
"""


def write_site(folder: Path, theme: str = "light") -> None:
    """Pages as the book has them: the contents at the side, an article, scripts and styles."""
    for package in ("minidist.plots", "course.widgets"):
        for file in (files(package) / "static").iterdir():
            (folder / file.name).write_text(file.read_text("utf-8"))
    head = "".join(f'<link rel="stylesheet" href="../{name}">' for name in STYLES)
    head += "".join(f'<script defer src="../{name}"></script>' for name in SCRIPTS)
    for here in NAMES:
        links = {page: "#" if page == here else f"../{page}.html" for page in NAMES}
        items = (f'<li><a href="{links[page]}">{title}</a></li>' for page, title in NAMES.items())
        body = progress(TARGETS).data if here == "book/progress" else ""
        (folder / here).parent.mkdir(exist_ok=True)
        (folder / f"{here}.html").write_text(
            PAGE.format(theme=theme, head=head, contents="".join(items), body=body)
        )


class Reader:
    """Somebody who turns the pages of one book in one browser."""

    def __init__(self, browser: Browser, folder: Path, **options: bool) -> None:  # noqa: F811
        self.page, self.folder = new_page(browser, **options), folder
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, name: str) -> Page:
        self.page.goto((self.folder / f"{name}.html").as_uri())
        return self.page

    def kept(self) -> dict[str, object]:
        return dict(json.loads(self.page.evaluate("localStorage['minidist.progress'] ?? '{}'")))

    def ticks(self, name: str) -> Locator:
        title = NAMES[name]
        return self.page.locator(".bd-docs-nav li", has_text=title).get_by_role("img")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    write_site(folder)
    return folder


@pytest.fixture
def reader(browser: Browser, folder: Path) -> Iterator[Reader]:  # noqa: F811
    reader = Reader(browser, folder)
    yield reader
    for context in browser.contexts:
        context.close()
    assert reader.errors == []


def end(page: Page) -> Locator:
    return page.locator("article").get_by_role("button")


def box(page: Page, name: str) -> Locator:
    return page.get_by_role("checkbox", name=name, exact=True)


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_a_chapter_is_ticked_on_all_pages_once_its_reader_says_so(reader: Reader) -> None:
    page = reader.open("book/ring")
    expect(end(page)).to_have_attribute("aria-pressed", "false")
    end(page).focus()
    page.keyboard.press("Enter")
    expect(end(page)).to_have_attribute("aria-pressed", "true")
    expect(reader.ticks("book/ring")).to_have_attribute("aria-label", "read")
    reader.open("notebooks/ring")
    expect(reader.ticks("book/ring")).to_have_text("✓")
    expect(page.get_by_role("img")).to_have_count(1)
    press(page, "I have done the exercises")
    expect(reader.ticks("notebooks/ring")).to_have_attribute("aria-label", "exercises done")
    reader.open("book/ring")
    press(page, "I have read this")
    expect(reader.ticks("book/ring")).to_have_count(0)
    expect(reader.ticks("notebooks/ring")).to_have_count(1)
    page.go_back()
    expect(reader.ticks("book/ring")).to_have_count(0)


def test_pages_that_are_neither_chapter_nor_lab_have_no_button(reader: Reader) -> None:
    expect(end(reader.open("book/puzzles"))).to_have_count(0)


def test_the_list_has_all_there_is_and_counts_it(reader: Reader) -> None:
    page = reader.open("book/ddp")
    end(page).click()
    reader.open("book/progress")
    expect(page.locator("fieldset input")).to_have_count(len(CHAPTERS + LABS) + len(TARGETS))
    names = ["Chapters read", "Exercises done", "Project"]
    for name, some, every in zip(names, (1, 0, 0), (CHAPTERS, LABS, TARGETS), strict=True):
        legend = f"{name}: {some} of {len(every)}"
        expect(page.locator("legend", has_text=name)).to_have_text(legend)
    box(page, "Scaling").check()
    expect(page.locator("legend").first).to_have_text(f"Chapters read: 2 of {len(CHAPTERS)}")
    expect(reader.ticks("book/scaling")).to_have_count(1)
    box(page, "DDP from scratch").uncheck()
    expect(reader.ticks("book/ddp")).to_have_count(0)
    page.get_by_role("link", name="Lab: build DDP").last.click()
    assert page.url.endswith("notebooks/ddp.html")


def test_each_milestone_belongs_to_the_chapter_that_sets_it() -> None:
    text = progress(TARGETS).data
    for name, page in (("ring", "ring"), ("DDP, flat", "ddp"), ("ZeRO-3", "zero")):
        assert f'value="{name}" data-page="book/{page}"' in text
    assert 'value="checks" data-page="book/testing"' in text


def test_a_report_sets_the_milestones_that_it_names_and_no_others(reader: Reader) -> None:
    page = reader.open("book/progress")
    for name in ("ZeRO-1", "ZeRO-2"):
        box(page, name).check()
    report = page.get_by_label("Paste here what make grade prints:")
    report.fill(REPORT)
    expect(page.get_by_role("status")).to_have_text("3 of 5 right.")
    right = [*page.locator("fieldset input:checked").evaluate_all("all => all.map(o => o.value)")]
    assert right == ["ring", "DDP, per parameter", "DDP, flat", "ZeRO-2"]
    expect(reader.ticks("book/ddp")).to_have_text("◆◆")
    label = "written: DDP, per parameter; DDP, flat"
    expect(reader.ticks("book/ddp")).to_have_attribute("aria-label", label)
    report.fill("make: *** No rule to make target 'grade'.  Stop.")
    expect(page.get_by_role("status")).to_have_text("No milestone is named there.")
    expect(reader.ticks("book/ddp")).to_have_text("◆◆")


@pytest.mark.parametrize("status", ["right", "wrong", "not yet"])
def test_every_verdict_is_read(status: str, reader: Reader) -> None:
    page = reader.open("book/progress")
    said = str(Verdict(status, "for 1: it is."))  # type: ignore[arg-type]
    page.get_by_label("Paste here").fill("\r\n".join(f"{name}: {said}" for name in TARGETS))
    right = len(TARGETS) if status == "right" else 0
    expect(page.get_by_role("status")).to_have_text(f"{right} of {len(TARGETS)} right.")


def test_it_can_be_switched_off_and_cleared(reader: Reader) -> None:
    page = reader.open("book/ring")
    end(page).click()
    reader.open("book/progress")
    keeps = page.get_by_label("Show ticks, and keep them in this browser")
    keeps.uncheck()
    expect(page.locator(".lists")).to_be_hidden()
    expect(page.get_by_role("img")).to_have_count(0)
    expect(end(reader.open("book/ring"))).to_have_count(0)
    reader.open("book/progress")
    keeps.check()
    expect(reader.ticks("book/ring")).to_have_count(1)
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    press(page, "Clear")
    expect(reader.ticks("book/ring")).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    press(page, "Clear")
    expect(page.get_by_role("img")).to_have_count(0)
    assert asked == ["Remove all ticks? Stars stay."]
    assert reader.kept()["done"] == {}


def test_stars_are_counted_and_travel_with_the_ticks(
    reader: Reader,
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    page = reader.open("book/ring")
    end(page).click()
    mine = {"broadcast": {"code": "a", "stars": 3}, "ring": {"code": "b"}, "fsdp": {"stars": 99}}
    page.evaluate("each => localStorage['minidist.puzzles'] = JSON.stringify(each)", mine)
    reader.open("book/progress")
    expect(page.locator(".earned")).to_have_text("6")
    with page.expect_download() as download:
        press(page, "Export")
    download.value.save_as(tmp_path / "progress.json")
    there = Reader(browser, reader.folder)  # another browser
    page = there.open("book/progress")
    page.evaluate("localStorage['minidist.puzzles'] = '{\"pipeline\": {\"stars\": 1}}'")
    box(page, "Scaling").check()
    page.get_by_label("File with progress").set_input_files(tmp_path / "progress.json")
    expect(page.get_by_role("status")).to_have_text("Imported.")
    expect(page.locator(".earned")).to_have_text("4")
    expect(box(page, "The ring")).to_be_checked()
    expect(box(page, "Scaling")).to_be_checked()
    for text in ("no json", "null", "{}", '{"done": 1}', '{"broadcast": {"stars": 3}}'):
        (tmp_path / "bad.json").write_text(text)
        page.get_by_label("File with progress").set_input_files(tmp_path / "bad.json")
        expect(page.get_by_role("status")).to_have_text("That is not a file with progress.")
    expect(page.locator(".earned")).to_have_text("4")
    assert there.errors == []


@pytest.mark.parametrize("before", [FULL, FORBIDDEN], ids=["full", "forbidden"])
def test_where_nothing_can_be_kept_pages_are_as_ever_and_the_list_says_so(
    before: str, reader: Reader
) -> None:
    reader.page.add_init_script(before)
    page = reader.open("book/ring")
    expect(end(page)).to_have_count(0)
    reader.open("book/progress")
    expect(page.locator(".your-progress")).to_have_text(
        "This browser keeps nothing here, so there is nothing to list.", use_inner_text=True
    )


@pytest.mark.parametrize("spoiled", SPOILED)
def test_what_is_kept_may_be_spoiled(spoiled: str, reader: Reader) -> None:
    page = reader.open("book/ring")
    page.evaluate("text => localStorage['minidist.progress'] = text", spoiled)
    page.evaluate("text => localStorage['minidist.puzzles'] = text", spoiled)
    page.reload()
    end(page).click()
    expect(reader.ticks("book/ring")).to_have_count(1)
    reader.open("book/progress")
    expect(box(page, "The ring")).to_be_checked()
    expect(page.locator(".earned")).to_have_text("0")


def test_without_a_script_the_list_says_where_it_is(browser: Browser, folder: Path) -> None:  # noqa: F811
    page = Reader(browser, folder, java_script_enabled=False).open("book/progress")
    expect(page.locator(".your-progress")).to_have_text(
        "The book's page, where scripts may run, lists here what you have read and done.",
        use_inner_text=True,
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(
    theme: str,
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    write_site(tmp_path, theme)
    reader = Reader(browser, tmp_path)
    reader.page.set_viewport_size({"width": PHONE, "height": 800})
    end(reader.open("book/ddp")).click()
    page = reader.open("book/progress")
    page.get_by_label("Paste here").fill(REPORT)
    for name in ("book/progress", "book/ddp"):
        reader.open(name)
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE
        for shown in page.locator("article button:visible").all():
            assert shown.evaluate("it => it.getBoundingClientRect().height") >= 44
        found = Axe().run(page, options={"preload": False})
        assert found.violations_count == 0, found.generate_report()
    assert reader.errors == []


def test_what_every_page_carries_is_small() -> None:
    static = files("course.widgets") / "static"
    assert sum(len((static / f"progress.{kind}").read_bytes()) for kind in ("js", "css")) < 8_000
