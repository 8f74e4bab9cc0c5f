"""What a reader has read and done: the list, the ticks in the contents, and what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from course.ask.verdict import Verdict
from course.pages.path import path
from course.project.report import TARGETS
from course.widgets import guesses, progress
from tests.support.browser import FORBIDDEN, FULL, browser  # noqa: F401 (a fixture)
from tests.support.pages import PHONE, Pages, site_of_the_book  # noqa: F401 (a fixture)

CHAPTERS = path()
LABS = [lab for chapter in CHAPTERS for lab in chapter.labs]
NAMES = {
    **{f"book/{each.page}": f"{n}. {each.title}" for n, each in enumerate(CHAPTERS, 1)},
    **{f"notebooks/{lab.name}": lab.title for lab in LABS},
    "book/progress": "Your progress",
    "book/puzzles": "Puzzles",
}
LIST = "book/progress"
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


class Reader:
    """Somebody who turns the pages of one book in one browser."""

    def __init__(self, site: Pages, theme: str = "light", **options: Any) -> None:
        self.site, self.page = site, site.new_page(**options)
        titles = NAMES.items()
        items = "".join(
            f'<li><a href="{site.address(to)}">{title}</a></li>' for to, title in titles
        )
        contents = f'<nav class="bd-docs-nav" aria-label="Main"><ul>{items}</ul></nav>'
        for here in NAMES:
            text = progress(TARGETS).html + guesses()._repr_html_() if here == LIST else ""
            body = contents.replace(site.address(here), "#")
            site.write(f'{body}<article class="bd-article">{text}</article>', theme, here)

    def open(self, name: str) -> Page:
        self.page.goto(self.site.address(name))
        return self.page

    def kept(self, part: str) -> Any:
        return json.loads(self.page.evaluate(f"localStorage['minidist.{part}'] ?? '{{}}'"))

    def keep(self, part: str, text: str) -> None:
        """Set what the browser keeps, and load the page again."""
        self.page.evaluate("both => localStorage.setItem(...both)", [f"minidist.{part}", text])
        self.page.reload()

    def ticks(self, name: str) -> Locator:
        return self.page.locator(".bd-docs-nav li", has_text=NAMES[name]).get_by_role("img")

    def export(self, to: Path) -> Any:
        with self.page.expect_download() as download:
            press(self.page, "Export")
        download.value.save_as(to)
        return json.loads(to.read_text())

    def read(self, file: Path, given: object) -> str:
        """Import a file with this text or data; what is said then."""
        file.write_text(given if isinstance(given, str) else json.dumps(given))
        said(self.page).evaluate("node => node.replaceChildren()")
        self.page.get_by_label("File with progress").set_input_files(file)
        expect(said(self.page)).not_to_be_empty()
        return said(self.page).inner_text()


@pytest.fixture
def reader(site: Pages) -> Reader:
    return Reader(site)


def end(page: Page) -> Locator:
    return page.locator("article").get_by_role("button")


def box(page: Page, name: str) -> Locator:
    return page.get_by_role("checkbox", name=name, exact=True)


def said(page: Page) -> Locator:
    return page.locator(".your-progress").get_by_role("status")


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
    reader.open(LIST)
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
    text = progress(TARGETS).html
    for name, page in (
        ("ring", "ring"),
        ("DDP, flat", "ddp"),
        ("ZeRO-3", "zero"),
        ("experts", "experts"),
    ):
        assert f'value="{name}" data-page="book/{page}"' in text
    assert 'value="checks" data-page="book/testing"' in text


def test_a_report_sets_the_milestones_that_it_names_and_no_others(reader: Reader) -> None:
    page = reader.open(LIST)
    for name in ("ZeRO-1", "ZeRO-2"):
        box(page, name).check()
    report = page.get_by_label("Paste here what make grade prints:")
    report.fill(REPORT)
    expect(said(page)).to_have_text("3 of 5 right.")
    right = [*page.locator("fieldset input:checked").evaluate_all("all => all.map(o => o.value)")]
    assert right == ["ring", "DDP, per parameter", "DDP, flat", "ZeRO-2"]
    expect(reader.ticks("book/ddp")).to_have_text("◆◆")
    label = "written: DDP, per parameter; DDP, flat"
    expect(reader.ticks("book/ddp")).to_have_attribute("aria-label", label)
    report.fill("make: *** No rule to make target 'grade'.  Stop.")
    expect(said(page)).to_have_text("No milestone is named there.")
    expect(reader.ticks("book/ddp")).to_have_text("◆◆")


@pytest.mark.parametrize("status", ["right", "wrong", "not yet"])
def test_every_verdict_is_read(status: str, reader: Reader) -> None:
    page = reader.open(LIST)
    verdict = str(Verdict(status, "for 1: it is."))  # type: ignore[arg-type]
    page.get_by_label("Paste here").fill("\r\n".join(f"{name}: {verdict}" for name in TARGETS))
    right = len(TARGETS) if status == "right" else 0
    expect(said(page)).to_have_text(f"{right} of {len(TARGETS)} right.")


def test_it_can_be_switched_off_and_cleared(reader: Reader) -> None:
    page = reader.open("book/ring")
    end(page).click()
    reader.open(LIST)
    keeps = page.get_by_label("Show ticks, and keep them in this browser")
    keeps.uncheck()
    expect(page.locator(".lists")).to_be_hidden()
    expect(page.get_by_role("img")).to_have_count(0)
    expect(end(reader.open("book/ring"))).to_have_count(0)
    reader.open(LIST)
    keeps.check()
    expect(reader.ticks("book/ring")).to_have_count(1)
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    press(page, "Clear")
    expect(reader.ticks("book/ring")).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    press(page, "Clear")
    expect(page.get_by_role("img")).to_have_count(0)
    assert asked == ["Remove all ticks? Stars and guesses stay."]
    assert reader.kept("progress")["done"] == {}


PUZZLES = {
    "broadcast": {"code": "a", "stars": 3},
    "ring": {"code": "b"},
    "fsdp": {"stars": 99},
    "pipeline": {"code": "c", "stars": 1},
}
GUESSED = {"guess": 20, "ratio": 0.4, "question": "How many?", "page": "why.html", "says": "Two."}


def test_all_that_is_kept_goes_from_one_browser_to_another(reader: Reader, tmp_path: Path) -> None:
    page = reader.open("book/ring")
    end(page).click()
    reader.keep("puzzles", json.dumps(PUZZLES))
    reader.keep("guesses", json.dumps({"many": GUESSED, "few": GUESSED}))
    reader.open(LIST)
    box(page, "DDP, flat").check()
    expect(page.locator(".earned")).to_have_text("7")
    done = {"book/ring": "book/ring", "DDP, flat": "book/ddp"}
    guessed = {"many": GUESSED, "few": GUESSED}
    everything = reader.export(tmp_path / "progress.json")
    assert everything == {"done": done, "puzzles": PUZZLES, "guesses": guessed}

    page.context.close()
    reader = Reader(reader.site)  # another browser
    page = reader.open(LIST)
    assert reader.kept("puzzles") == {}
    mine = {
        "broadcast": {"code": "mine", "stars": 1, "best": "ours"},
        "ring": {"code": "mine"},
        "pipeline": {"stars": 2},
    }
    reader.keep("puzzles", json.dumps(mine))
    reader.keep("guesses", json.dumps({"few": GUESSED | {"says": "Mine."}}))
    box(page, "Scaling").check()
    assert reader.read(tmp_path / "p.json", everything) == "Imported."
    expect(page.locator(".earned")).to_have_text("8")
    for name in ("The ring", "DDP, flat", "Scaling"):
        expect(box(page, name)).to_be_checked()
    assert reader.kept("puzzles") == {
        "broadcast": {"code": "mine", "stars": 3, "best": "a"},
        "ring": {"code": "mine", "stars": 0},
        "fsdp": {"stars": 99},
        "pipeline": {"code": "c", "stars": 2},
    }
    rows = page.locator(".guesses").get_by_role("listitem")
    expect(rows).to_contain_text(["How many? Mine.", "How many? Two."])


def test_files_of_the_past_are_read(reader: Reader, tmp_path: Path) -> None:
    page = reader.open(LIST)
    puzzles = {"broadcast": {"code": "a", "stars": 3}}
    assert reader.read(tmp_path / "stars.json", puzzles) == "Imported."
    expect(page.locator(".earned")).to_have_text("3")
    both = {"done": {"book/ring": "book/ring"}, "puzzles": {"fsdp": {"code": "b", "stars": 2}}}
    assert reader.read(tmp_path / "progress.json", both) == "Imported."
    expect(page.locator(".earned")).to_have_text("5")
    expect(box(page, "The ring")).to_be_checked()


@pytest.mark.parametrize(
    "given",
    [
        *("no json", "null", "3", "[]", "{}", '{"done": 1}', '{"broadcast": 3}'),
        '{"broadcast": {"code": 1, "stars": 3}}',
        '{"broadcast": {"code": "a", "stars": "3"}}',
        '{"done": {}, "puzzles": {"fsdp": {"stars": -1}}, "guesses": {"many": {"says": 1}}}',
        '{"done": {"book/none": "book/none"}}',
    ],
)
def test_what_is_no_progress_changes_nothing(given: str, reader: Reader, tmp_path: Path) -> None:
    reader.open(LIST)
    assert reader.read(tmp_path / "bad.json", given) == "There is no progress in that file."
    assert [reader.kept(part) for part in ("progress", "puzzles", "guesses")] == [{}, {}, {}]


@pytest.mark.parametrize("before", [FULL, FORBIDDEN], ids=["full", "forbidden"])
def test_where_nothing_can_be_kept_pages_are_as_ever_and_the_list_says_so(
    before: str, site: Pages
) -> None:
    reader = Reader(site, before=before)
    page = reader.open("book/ring")
    expect(end(page)).to_have_count(0)
    reader.open(LIST)
    expect(page.locator(".your-progress")).to_have_text(
        "This browser keeps nothing here once you leave the page.", use_inner_text=True
    )


@pytest.mark.parametrize("spoiled", SPOILED)
def test_what_is_kept_may_be_spoiled(spoiled: str, reader: Reader) -> None:
    page = reader.open("book/ring")
    for part in ("progress", "puzzles", "guesses"):
        reader.keep(part, spoiled)
    end(page).click()
    expect(reader.ticks("book/ring")).to_have_count(1)
    reader.open(LIST)
    expect(box(page, "The ring")).to_be_checked()
    expect(page.locator(".earned")).to_have_text("0")


def test_without_a_script_the_list_says_where_it_is(site: Pages) -> None:
    page = Reader(site, java_script_enabled=False).open(LIST)
    expect(page.locator(".your-progress")).to_have_text(
        "The book's page, where scripts may run, lists here what you have read and done.",
        use_inner_text=True,
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(theme: str, site: Pages) -> None:
    reader = Reader(site, theme, width=PHONE)
    end(reader.open("book/ddp")).click()
    page = reader.open(LIST)
    page.get_by_label("Paste here").fill(REPORT)
    for name in (LIST, "book/ddp"):
        reader.open(name)
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE
        for shown in page.locator("article button:visible").all():
            assert shown.evaluate("it => it.getBoundingClientRect().height") >= 44
        found = Axe().run(page, options={"preload": False})
        assert found.violations_count == 0, found.generate_report()
