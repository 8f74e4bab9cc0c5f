"""Every page of the rendered book, opened from file:// as a reader would."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit
from xml.etree import ElementTree

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page

from tests.support.browser import browser, new_page  # noqa: F401 (a fixture)
from tools.book import BUILD, up_to_date

HTML = BUILD / "html"
PHONE, DESK = (390, 844), (1280, 900)

# Elements that stick out of the page and that no box around them scrolls or cuts.
STICKING_OUT = """() => {
  const width = document.documentElement.clientWidth;
  const inside = (element) => element.getBoundingClientRect().right <= width + 1;
  const clips = (element) => getComputedStyle(element).overflowX !== "visible";
  const boxed = (box) => box && ((clips(box) && inside(box)) || boxed(box.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter((element) => !inside(element) && !boxed(element))
    .map((element) => element.outerHTML.slice(0, 160));
}"""
# Of each picture: its file, how wide it is shown and how wide it could be, and whether it may be
# small.
SHOWN = """() => [...document.querySelectorAll("article img[src$='.svg']")]
    .filter((picture) => picture.clientWidth)
    .map((picture) => {
      const column_ = "section, li, dd, td, .admonition, .sd-card-body, .sd-tab-content";
      const box = picture.closest(column_);
      const { paddingLeft, paddingRight } = getComputedStyle(box);
      const column = box.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
      const file = picture.src.split("/").at(-1);
      return [file, picture.clientWidth, column, picture.matches(".small"), picture.alt];
    })"""
FILLS, ON_A_DESK, ON_A_PHONE = 0.8, 12, 10  # of the column; pixels of the smallest letters
# Code and outputs that a desk does not show whole, folded ones too.
CLIPPED = """() => {
  const folded = [...document.querySelectorAll("article details:not([open])")];
  folded.forEach((each) => { each.open = true; });
  const clipped = [...document.querySelectorAll("article pre")]
    .filter((pre) => pre.clientWidth && pre.scrollWidth > pre.clientWidth + 1)
    .map((pre) => `${pre.scrollWidth} of ${pre.clientWidth} px: ${pre.textContent.slice(0, 80)}`);
  folded.forEach((each) => { each.open = false; });
  return clipped;
}"""
# Tables, pictures, code and equations of which a part is out of sight without a hint, or out of
# reach of the keyboard; and those that still hint when there is no more.
HIDDEN_REST = """async () => {
  const which = ".pst-scrollable-table-container, .picture, pre, mjx-container[display]";
  const boxes = [...document.querySelectorAll(`article :is(${which})`)]
    .filter((box) => box.checkVisibility());
  const fades = (box) => getComputedStyle(box).maskImage !== "none";
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const wide = (box) => box.scrollWidth > box.clientWidth + 1;
  const wrong = boxes.filter(
    (box) => fades(box) !== wide(box) || (wide(box) && box.tabIndex !== 0));
  boxes.forEach((box) => { box.scrollLeft = box.scrollWidth; });
  await painted();
  wrong.push(...boxes.filter(fades));
  boxes.forEach((box) => { box.scrollLeft = 0; });
  await painted();
  return wrong.map((box) => box.outerHTML.slice(0, 160));
}"""
# Contrast takes axe longer than all else together. But an element's colours follow from its tag,
# classes and style and those round it (and a row's from its being odd): two of a kind are enough,
# in the whole book. (Of a single character axe cannot tell: so these are kinds of their own.)
FEW_OF_A_KIND = """(known) => {
  const odd = (row) => [...row.parentElement.children].indexOf(row) % 2;
  const own = (element) => [element.tagName, element.className, element.getAttribute("style"),
    element.tagName === "TR" && odd(element)].join(".");
  const kinds = new Map([[document.body, ""]]);
  const kind = (element) => {
    if (!kinds.has(element)) kinds.set(element, `${kind(element.parentElement)} ${own(element)}`);
    return kinds.get(element);
  };
  const texts = (element) => [...element.childNodes].filter((node) => node.nodeType === 3)
    .map((node) => node.data.trim()).join("");
  const held = Object.fromEntries(known.map((which) => [which, 2]));
  const more = [...document.querySelectorAll("body *")].filter((element) => {
    const text = texts(element);
    if (!element.checkVisibility() || !(text || !element.childElementCount)) return false;
    const which = `${kind(element)} ${text.length > 1}`;
    held[which] = (held[which] || 0) + 1;
    return held[which] > 2;
  });
  more.forEach((element) => element.remove());
  return Object.keys(held).filter((which) => held[which] >= 2);
}"""
# Tabs fade from one scheme's colours to the other's; axe must not see them half way.
AT_ONCE = "*, ::before, ::after { transition: none !important }"
CONTRAST = {"runOnly": ["color-contrast"]}
STRUCTURE = {"rules": {"color-contrast": {"enabled": False}}}
# axe passes over what is folded, but takes its time: a stepper has all its frames there.
WITHOUT_FOLDED = """() => document.querySelectorAll("details:not([open]) > :not(summary)")
    .forEach((folded) => folded.remove())"""
# Half of a page's elements are coloured words of its code, in which axe would look for structure.
PLAIN_CODE = """() => {
  window.coloured = [...document.querySelectorAll(".highlight pre")]
    .map((code) => [code, [...code.childNodes]]);
  window.coloured.forEach(([code]) => { code.textContent = code.textContent; });
}"""
COLOURED_CODE = """() => {
  window.coloured.forEach(([code, words]) => code.replaceChildren(...words));
}"""
# The same content stands in a phone's frame and in a desk's, of which these pages have all parts.
FRAMES = {"book/index.html", "book/why.html", "notebooks/why.html"}
UNRENDERED_MATH = """() => [...document.querySelectorAll(".math")]
    .filter((math) => !math.querySelector("mjx-container") || math.querySelector("mjx-merror"))
    .map((math) => math.textContent)"""
# Without preload: it would read the style sheets again by a request that file:// forbids.
AXE = """async (rules) => {
  const { violations } = await axe.run({ resultTypes: ["violations"], preload: false, ...rules });
  const messages = (node) => node.any.map((check) => check.message).join(" ");
  return violations.flatMap(({ id, nodes }) => nodes.map(
    (node) => `${id}: ${node.target} ${node.html.slice(0, 200)} ${messages(node)}`));
}"""


def no(problems: Iterable[str]) -> bool:
    """True if there are none, or a failure that lists them whole."""
    if found := sorted(problems):
        pytest.fail("\n".join(found), pytrace=False)
    return True


def is_redirect(path: Path) -> bool:
    return 'http-equiv="refresh"' in path.read_text()[:1000].lower()


def one_source(pages: Iterable[Path]) -> Iterator[Path]:
    """All pages but those of the modules' sources, which are alike: the longest stands for them."""
    sources = {page for page in pages if "_modules" in page.parts}
    longest = max(sources, key=lambda page: page.stat().st_size, default=None)
    return (page for page in pages if page not in sources or page == longest)


PAGES = [
    page.relative_to(HTML).as_posix()
    for page in one_source(sorted(HTML.rglob("*.html")))
    if "_static" not in page.parts and not is_redirect(page)
]
each_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(autouse=True, scope="module")
def book_is_built() -> None:
    if not up_to_date():
        pytest.fail("the book is not built from the present sources: run `make book` first")


def test_there_are_pages() -> None:
    assert "book/index.html" in PAGES


PROBLEMS = ["errors", "foreign requests", "raw math", "overhang", "small pictures"]
PROBLEMS += ["clipped code", "hidden rest", "violations"]
Visit = dict[str, list[str]]  # what the browser saw on one page, by kind of problem


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:  # noqa: F811
    return new_page(
        browser, reduced_motion="reduce"
    )  # one for all: a window costs more than a page


def open_page(tab: Page, name: str, size: tuple[int, int]) -> None:
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.goto((HTML / name).as_uri(), wait_until="load")
    tab.add_style_tag(content=AT_ONCE)
    tab.evaluate("window.MathJax?.startup?.promise")
    tab.evaluate("document.fonts.ready")
    tab.evaluate(AXE_SCRIPT)


def show(page: Page, mode: str) -> None:
    page.emulate_media(color_scheme=mode)
    page.wait_for_selector(f"html[data-theme={mode}]")


def violations(page: Page, mode: str, rules: object) -> list[str]:
    show(page, mode)
    width = page.evaluate("document.documentElement.clientWidth")
    return [f"{width} px, {mode}: {each}" for each in page.evaluate(AXE, rules)]


@cache
def measures(file: str) -> tuple[float, float]:
    """A picture's width as it was drawn, and the size of its smallest letters, in pixels.

    Matplotlib draws a letter from an outline of 100 points, made smaller.
    """
    picture = ElementTree.parse(HTML / "_images" / file).getroot()
    small = r"scale\((0?\.\d+) -0?\.\d+\)$"
    scales = (re.search(small, each.get("transform", "")) for each in picture.iter())
    letters = [100 * float(scale[1]) for scale in scales if scale]
    wide, least = float(picture.attrib["width"].removesuffix("pt")), min(letters, default=99)
    return wide * 96 / 72, least * 96 / 72


def small_pictures(shown: Iterable[tuple[str, int, float, bool, str]], least: int) -> Iterator[str]:
    """Those that leave much of a desk's column free, or whose letters are hard to read."""
    for file, width, column, may_be_small, text in shown:
        drawn, letters = measures(file)
        if letters * width / drawn < least - 0.1:
            yield f"letters of {letters * width / drawn:.1f} px: {text}"
        if least == ON_A_DESK and width < FILLS * column and not may_be_small:
            yield f"{width} of {column:.0f} px: {text}"


@pytest.fixture(scope="module")
def visit(tab: Page) -> Callable[[str], Visit]:
    errors, requests = list[str](), list[str]()
    kinds: dict[tuple[int, int], list[str]] = {PHONE: [], DESK: []}
    known = ("file:", "data:")
    tab.on("request", lambda it: requests.extend([it.url] * (not it.url.startswith(known))))
    tab.on("requestfailed", lambda request: errors.append(f"not loaded: {request.url}"))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda said: errors.extend([said.text] * (said.type == "error")))

    @cache
    def visit_once(name: str) -> Visit:
        seen: Visit = {what: [] for what in PROBLEMS}
        errors.clear()
        requests.clear()
        for size in (PHONE, DESK) if name in FRAMES else (PHONE,):
            open_page(tab, name, size)
            if size is PHONE:
                wide = tab.evaluate("document.documentElement.scrollWidth")
                seen["overhang"] = [f"{wide} px wide"] * (wide > PHONE[0])
                seen["overhang"] += tab.evaluate(STICKING_OUT)
                seen["raw math"] = tab.evaluate(UNRENDERED_MATH)
                seen["small pictures"] = [*small_pictures(tab.evaluate(SHOWN), ON_A_PHONE)]
                tab.set_viewport_size({"width": DESK[0], "height": DESK[1]})
                seen["small pictures"] += small_pictures(tab.evaluate(SHOWN), ON_A_DESK)
                seen["clipped code"] = tab.evaluate(CLIPPED)
                tab.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
            for mode in ("dark", "light"):  # at night pictures have a wider ground
                show(tab, mode)
                seen["hidden rest"] += tab.evaluate(HIDDEN_REST)
            tab.evaluate(WITHOUT_FOLDED)
            tab.evaluate(PLAIN_CODE)
            seen["violations"] += violations(tab, "light", STRUCTURE)
            tab.evaluate(COLOURED_CODE)
            kinds[size] = tab.evaluate(FEW_OF_A_KIND, kinds[size])
            for mode in ("light", "dark"):
                seen["violations"] += violations(tab, mode, CONTRAST)
        return seen | {"errors": [*errors], "foreign requests": [*requests]}

    return visit_once


@pytest.mark.parametrize("what", PROBLEMS)
@each_page
def test_a_page_has_no(name: str, what: str, visit: Callable[[str], Visit]) -> None:
    assert no(visit(name)[what])


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_words_in_code_that_are_pale_are_noticed(tab: Page, mode: str) -> None:
    kinds = ["k", "n", "mi", "c1"]
    open_page(tab, "book/fsdp.html", DESK)
    tab.add_style_tag(
        content=f"article .highlight :is(.{', .'.join(kinds)}) {{ color: #88888880 !important }}"
    )
    tab.evaluate(FEW_OF_A_KIND, [])
    found = violations(tab, mode, CONTRAST)
    assert {kind for kind in kinds for each in found if f'class="{kind}"' in each} == {*kinds}
    assert all(any(f'class="{kind}"' in each for kind in kinds) for each in found)


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(), "html.parser")


@cache
def anchors(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\sid="([^"]+)"', path.read_text())) | {"", "top"}


def broken(page: Path, address: str) -> bool:
    """Whether an address on this page points to a file or an anchor that is not there."""
    if urlsplit(address).scheme in ("http", "https", "mailto", "data", "javascript"):
        return False
    file, anchor = urldefrag(address)
    target = (page.parent / unquote(file.partition("?")[0])).resolve() if file else page
    if not target.is_file():
        return True
    return target.suffix == ".html" and unquote(anchor) not in anchors(target)


@each_page
def test_links_lead_somewhere(name: str) -> None:
    page = HTML / name
    addresses = {
        tag.get("href") or tag.get("src")
        for tag in soup(page).find_all(["a", "link", "script", "img", "iframe", "source"])
    } - {None}
    assert no(address for address in addresses if broken(page, address))


HEAVY = 3e6  # bytes


@each_page
def test_a_page_is_light(name: str) -> None:
    page = HTML / name
    tags = soup(page).select("script[src], link[rel=stylesheet], img[src]")
    files = {tag.get("src") or tag.get("href") for tag in tags}
    parts = {file: page.parent / unquote(urlsplit(file).path) for file in files}
    sizes = {file: path.stat().st_size for file, path in parts.items()}
    total = page.stat().st_size + sum(sizes.values())
    largest = sorted(sizes.items(), key=lambda each: -each[1])[:5]
    assert total <= HEAVY, largest


def test_the_cheat_sheet_fits_on_two_sheets_of_paper(tab: Page) -> None:
    open_page(tab, "book/cheat.html", DESK)
    for paper in ("A4", "Letter"):
        pdf = tab.pdf(format=paper)
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2, paper


@each_page
def test_columns_of_numbers_stand_on_the_right(name: str) -> None:
    for table in soup(HTML / name).select("article table.table"):
        rows = [row.find_all(["td", "th"], recursive=False) for row in table.select("tbody tr")]
        for column in zip(*rows, strict=False):
            texts = [cell.get_text().strip() for cell in column]
            if all(re.fullmatch(r"\d[\d,]*(\.\d+)?", text) for text in texts):
                assert all("text-right" in cell.get("class", []) for cell in column), texts


@each_page
def test_pictures_have_a_text(name: str) -> None:
    # A cell without `alt` in its metadata gets the file's name for one, which tells nothing.
    texts = {str(tag): tag.get("alt", "") for tag in soup(HTML / name).find_all("img")}
    assert no(
        tag for tag, text in texts.items() if not text.strip() or re.search(r"\.(svg|png)$", text)
    )


@each_page
def test_a_page_counts_its_figures_in_order(name: str) -> None:
    numbers = [tag.get_text() for tag in soup(HTML / name).select("figure .caption-number")]
    parts = [number.split()[1].split(".") for number in numbers]
    own = [int(number) for _, number in (each for each in parts if len(each) == 2)]
    assert own == [*range(1, len(own) + 1)], "appendices are counted together"
    assert no(each for each in parts if each[0].startswith("L") != name.startswith("notebooks/"))


@each_page
def test_outputs_hold_no_traceback_or_warning(name: str) -> None:
    page = soup(HTML / name)
    assert no(tag.get_text() for tag in page.select(".cell_output .stderr"))
    for cell in page.select(".cell:not(.tag_raises-exception) .cell_output"):
        said = re.search(r"Traceback \(most recent call last\)|\b\w*Warning:.*", cell.get_text())
        assert said is None, said


@each_page
def test_no_output_brings_what_all_pages_are_served(name: str) -> None:
    assert not soup(HTML / name).select(".cell_output style")


@each_page
def test_a_page_does_not_say_where_it_was_built(name: str) -> None:
    assert str(BUILD.parent) not in (HTML / name).read_text()


def test_recorded_times_are_those_of_the_record_and_say_so() -> None:
    results = BUILD.parent / "benchmarks" / "results"
    record = json.loads((results / "collectives.json").read_text())
    page = soup(HTML / "book" / "results.html")
    label = f"recorded on {record['machine']}, {record['date']}"
    cells = [cell for cell in page.select(".cell_output") if label in cell.get_text()]
    (cell,) = (cell for cell in cells if "all_reduce, 2 ranks" in cell.get_text())
    shown = [td.get_text() for row in cell.select("tbody tr") for td in row.select("td")[1:]]
    ours = [row for row in record["rows"] if row["what"] == "all_reduce" and "ratio" in row]
    rows = sorted(ours, key=lambda row: (row["bytes"], row["ranks"]))
    assert shown == [f"{row['ratio']:.3g}" for row in rows]


def test_the_front_door_leads_to_the_index() -> None:
    assert is_redirect(HTML / "index.html")
    assert "book/index.html" in (HTML / "index.html").read_text()
