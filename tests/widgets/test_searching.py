"""The calculator that searches: its table is Python's, and it answers while a page goes on."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Locator, Page, expect

from course.interactive import in_page, searching
from course.interactive.page import scaled, seconds_text
from course.interactive.sliders import POLICIES
from course.widgets import search_slider
from minidist import search
from minidist.memory.state import bytes_each
from minidist.planner.hardware import ACCELERATORS
from minidist.planner.jobs import LARGE
from tests.support.browser import browser  # noqa: F401 (a fixture)
from tests.support.pages import PHONE, Pages, pages  # noqa: F401 (a fixture)

SLIDER = search_slider()
HTML = SLIDER._repr_html_()
WORKERS = """globalThis.workers = 0;
const Real = globalThis.Worker;
globalThis.Worker = class extends Real {
  constructor(...given) { super(...given); globalThis.workers += 1; }
};"""


@pytest.fixture(scope="module")
def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: F811
    pages = Pages(browser, tmp_path_factory.mktemp("search"))  # noqa: F811
    yield pages.open(HTML, before=WORKERS)
    assert pages.errors == []


def said(page: Page) -> str:
    """What is said once the search is over."""
    expect(page.locator(".said")).not_to_contain_text("Searching")
    return page.locator(".said").inner_text()


def turn(page: Page, label: str, to: str) -> None:
    """Set a control by the text that it then shows."""
    (control,) = (each for each in SLIDER.controls if each.label == label)
    place = [*control.texts].index(to)
    knob = page.locator(".knobs").get_by_label(label, exact=True)
    knob.select_option(to) if control.choose else knob.fill(str(place))


def ask(page: Page, **texts: str) -> dict[str, Any]:
    """Python's answer to what the controls say after these turns, by their names."""
    values = {}
    for each in SLIDER.controls:
        text = texts.get(each.name, each.texts[each.place])
        turn(page, each.label, text)
        values[each.name] = each.values[[*each.texts].index(text)]
    gpu = ACCELERATORS[values["gpu"]]
    return in_page.searched(
        values["model"], values["tokens"], gpu, bytes_each(*POLICIES[searching.AUTOCAST_ADAM]),
        values["ranks"], values["samples"], in_page.usable(gpu.memory, 0.9),
        searching.ORDERS[values["orders"]],
    )  # fmt: skip


def table(found: BeautifulSoup | Locator) -> list[list[str]]:
    """Texts of the caption and of each row."""
    soup = found
    if isinstance(found, Locator):
        soup = BeautifulSoup(found.locator(".found").evaluate("it => it.outerHTML"), "html.parser")
    rows = [[cell.get_text("|") for cell in row.select("th, td")] for row in soup.select("tr")]
    return [[soup.select_one("caption").get_text()], *rows]


def test_it_starts_with_the_table_that_is_there_without_scripts(pages: Pages) -> None:  # noqa: F811
    page = pages.open(HTML, before=WORKERS)
    assert table(page.locator("figure")) == table(BeautifulSoup(SLIDER.still, "html.parser"))
    assert page.evaluate("workers") == 0
    best = search(LARGE, "H100", ranks=16_384, samples=2048).best
    rows = table(page.locator("figure"))[2:]
    assert [row[2] for row in rows] == [seconds_text(each.seconds) for each in best]
    assert [row[3] for row in rows] == [f"{each.mfu:.0%}" for each in best]
    assert [row[1].split("|")[2] for row in rows] == [each.binds for each in best]


@pytest.mark.parametrize(
    "texts",
    [
        {"model": "Llama 3.2 3B", "ranks": "16", "samples": "96"},
        {"model": "like DeepSeek-V3, 256 experts", "ranks": "2,048", "tokens": "4,096"},
        {"gpu": "A100", "ranks": "8,192", "samples": "12,288"},
        {"model": "Llama 3.1 70B", "ranks": "512", "orders": "1F1B alone"},
    ],
)
def test_an_answer_is_python_s(desk: Page, texts: dict[str, str]) -> None:
    right = ask(desk, **texts)
    words = said(desk)
    assert words.startswith(f"Of the best grid's {seconds_text(right['best'][0]['seconds'])} most")
    (caption, *_), _, *rows = table(desk.locator("figure"))
    assert f". {right['best'][0]['placed']} Grid 2 takes" in words
    assert f"{right['tried']:,} grids" in caption
    for place, (row, each) in enumerate(zip(rows, right["best"], strict=True)):
        ways = each["grid"]
        how = searching.rest_text(ways), searching.binds_text(each)
        texts_ = searching.degrees_text(ways), *how
        assert row[:2] == [str(place + 1), "|".join(texts_)]
        assert row[2] == seconds_text(each["seconds"])
        assert row[4] == scaled(each["peak"], "B", searching.BYTES)


def test_why_the_others_lost(desk: Page) -> None:
    right = ask(desk)["best"]
    words = said(desk)
    more = right[1]["seconds"] - right[0]["seconds"]
    assert f"Grid 2 takes {seconds_text(more)} longer: it loses" in words
    desk.get_by_label("Bars of grid 3").check()
    expect(desk.get_by_label("Bars of grid 3")).to_be_focused()
    lost = {name: right[2]["spent"][name] - right[0]["spent"][name] for name in right[0]["spent"]}
    worst = max(lost, key=lost.__getitem__)
    expect(desk.locator(".said")).to_contain_text(
        f"it loses {seconds_text(lost[worst])} to {searching.SPENT[worst]}"
    )
    takes = [seconds_text(each["spent"]["compute"]) for each in (right[0], right[2])]
    expect(desk.locator(".picture")).to_contain_text(f"{takes[0]}, grid 3: {takes[1]}")


def test_by_how_much_nothing_fits(desk: Page) -> None:
    right = ask(desk, ranks="8", samples="8", gpu="A100")
    words, limit = said(desk), 0.9 * ACCELERATORS["A100"].memory
    over = scaled(right["least"]["peak"] - limit, "B", searching.BYTES)
    assert words.startswith("Nothing fits: ")
    assert f"{over} more than 77.3 GB. It would fit on {right['enough']} GPUs." in words
    expect(desk.locator(".above.past .found")).to_have_count(1)


def test_no_grid_has_so_many_ranks_and_so_few_samples(pages: Pages) -> None:  # noqa: F811
    many, first = 2**22, SLIDER.controls[1]
    ranks = first._replace(values=[8, many], texts=["8", f"{many:,}"], start=8)
    controls = [ranks if each.name == "ranks" else each for each in SLIDER.controls]
    page = pages.open(SLIDER._replace(controls=controls)._repr_html_())
    turn(page, "Sequences in a step", "8")
    page.locator(".knobs").get_by_label("GPUs").fill("1")
    assert said(page).startswith("No grid has 4,194,304 GPUs and 8 sequences: each replica takes")


def test_many_turns_in_a_row_are_one_search(desk: Page) -> None:
    ask(desk)
    said(desk)
    before = desk.evaluate("workers")
    knob = desk.locator(".knobs").get_by_label("Sequences in a step")
    knob.evaluate("""it => { for (const at of [3, 4, 5, 6]) {
      it.value = at;
      it.dispatchEvent(new Event("input"));
    } }""")
    expect(desk.locator(".said")).to_have_text("Searching all grids …")
    assert said(desk)
    assert desk.evaluate("workers") == before + 1
    ask(desk)  # it is known
    assert "Searching" not in desk.locator(".said").inner_text()


def test_a_page_without_workers_searches_itself(pages: Pages) -> None:  # noqa: F811
    page = pages.open(HTML, PHONE, before="globalThis.Worker = undefined;")
    turn(page, "GPUs", "4,096")
    assert re.match(r"Of the best grid's [\d.]+ s most goes to compute", said(page))
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
