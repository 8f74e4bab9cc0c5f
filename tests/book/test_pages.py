"""Every page of the rendered book, as it stands in its file; `test_browsed` opens them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from bs4 import BeautifulSoup

from course.pages.path import path
from tests.book.rendered import HTML, PAGES, is_redirect, soup
from tools.book import BUILD

pytestmark = pytest.mark.usefixtures("book_is_built")

Rule = Callable[[str, BeautifulSoup], Iterable[object]]  # a page, and what is wrong on it
HEAVY = 3.1e6  # bytes


def on_all_pages(rule: Rule) -> Callable[[], None]:
    """A test that lists what the rule finds, with its page."""

    def test() -> None:
        offenders = [f"{name}: {each}" for name in PAGES for each in rule(name, soup(name))]
        assert not offenders, "\n".join(offenders)

    return test


def test_there_are_pages_and_the_front_door_leads_to_the_index() -> None:
    assert "book/index.html" in PAGES
    assert is_redirect(HTML / "index.html")
    assert "book/index.html" in (HTML / "index.html").read_text()


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


@on_all_pages
def test_links_lead_somewhere(name: str, page: BeautifulSoup) -> Iterator[str]:
    tags = page.find_all(["a", "link", "script", "img", "iframe", "source"])
    addresses = {tag.get("href") or tag.get("src") for tag in tags} - {None}
    return (address for address in sorted(addresses) if broken(HTML / name, address))


@on_all_pages
def test_a_page_is_light(name: str, page: BeautifulSoup) -> Iterator[object]:
    tags = page.select("script[src], link[rel=stylesheet], img[src]")
    files = {tag.get("src") or tag.get("href") for tag in tags} | {Path(name).name}
    parts = {file: (HTML / name).parent / unquote(urlsplit(file).path) for file in files}
    sizes = sorted(((path.stat().st_size, file) for file, path in parts.items()), reverse=True)
    if sum(size for size, _ in sizes) > HEAVY:
        yield sizes[:5]


@on_all_pages
def test_a_page_without_formulas_loads_no_mathjax(name: str, page: BeautifulSoup) -> Iterator[str]:
    loads = page.select_one("script[src*=mathjax]") is not None
    if loads != (page.select_one("article .math") is not None):
        yield "loads MathJax for nothing" if loads else "formulas without MathJax"


@on_all_pages
def test_columns_of_numbers_stand_on_the_right(name: str, page: BeautifulSoup) -> Iterator[object]:
    for table in page.select("article table.table"):
        rows = [row.find_all(["td", "th"], recursive=False) for row in table.select("tbody tr")]
        for column in zip(*rows, strict=False):
            texts = [cell.get_text().strip() for cell in column]
            right = all("text-right" in cell.get("class", []) for cell in column)
            if not right and all(re.fullmatch(r"\d[\d,]*(\.\d+)?", text) for text in texts):
                yield texts


@on_all_pages
def test_pictures_have_a_text(name: str, page: BeautifulSoup) -> Iterator[object]:
    """A cell without `alt` in its metadata gets the file's name for one, which tells nothing."""
    texts = ((tag, tag.get("alt", "")) for tag in page.find_all("img"))
    return (tag for tag, text in texts if not text.strip() or re.search(r"\.(svg|png)$", text))


@on_all_pages
def test_a_page_counts_its_figures_in_order(name: str, page: BeautifulSoup) -> Iterator[object]:
    numbers = [tag.get_text() for tag in page.select("figure .caption-number")]
    parts = [number.split()[1].split(".") for number in numbers]
    own = [int(each[1]) for each in parts if len(each) == 2]  # appendices are counted together
    if own != [*range(1, len(own) + 1)]:
        yield own
    yield from (each for each in parts if each[0].startswith("L") != name.startswith("notebooks/"))


@on_all_pages
def test_outputs_hold_no_warning_and_no_style(name: str, page: BeautifulSoup) -> Iterator[object]:
    yield from page.select(".cell_output .stderr, .cell_output style")  # styles serve all pages
    for cell in page.select(".cell:not(.tag_raises-exception) .cell_output"):
        said = r"Traceback \(most recent call last\)|\b\w*Warning:.*"
        yield from (found[0] for found in re.finditer(said, cell.get_text()))


@on_all_pages
def test_a_page_describes_itself_to_those_who_link_to_it(
    name: str, page: BeautifulSoup
) -> Iterator[object]:
    for wanted in ("name=description", *(f"property='og:{of}'" for of in ("title", "description"))):
        if not any(each.get("content") for each in page.select(f"meta[{wanted}]")):
            yield wanted
    (card,) = (str(each["content"]) for each in page.select("meta[property='og:image']"))
    if "://" not in card and not (HTML / name).parent.joinpath(card).is_file():
        yield card


@on_all_pages
def test_a_link_to_a_term_or_another_pages_figure_says_what_it_is(
    name: str, page: BeautifulSoup
) -> Iterator[object]:
    if name == "book/glossary.html":
        return
    figures = 'article a[href*=".html#fig-"]:has(> .std-numref)'
    for link in page.select(f'article a[href*="glossary.html#term-"], {figures}'):
        meaning = str(link.get("title", ""))
        if len(meaning) < 10 or "\\" in meaning:
            yield f"{link.text}: {meaning!r}"


def test_a_chapter_says_how_long_it_takes() -> None:
    said = {ch.page: soup(f"book/{ch.page}.html").select_one("p.minutes") for ch in path()}
    times = {page: re.findall(r"\d+", line.text) if line else [] for page, line in said.items()}
    wanted = {ch.page: [str(ch.minutes), *(str(lab.minutes) for lab in ch.labs)] for ch in path()}
    assert times == wanted


def test_a_page_does_not_say_where_it_was_built() -> None:
    offenders = [name for name in PAGES if str(BUILD.parent) in (HTML / name).read_text()]
    assert not offenders, "\n".join(offenders)


def test_recorded_times_are_those_of_the_record_and_say_so() -> None:
    results = BUILD.parent / "benchmarks" / "results"
    record = json.loads((results / "collectives.json").read_text())
    label = f"recorded on {record['machine']}, {record['date']}"
    cells = soup("book/results.html").select(".cell_output")
    wanted = label, "all_reduce, 2 ranks"
    (cell,) = (cell for cell in cells if all(each in cell.get_text() for each in wanted))
    shown = [td.get_text() for row in cell.select("tbody tr") for td in row.select("td")[1:]]
    ours = [row for row in record["rows"] if row["what"] == "all_reduce" and "ratio" in row]
    rows = sorted(ours, key=lambda row: (row["bytes"], row["ranks"]))
    decimals = [len(text.partition(".")[2]) for text in shown]
    assert shown == [f"{row['ratio']:.{n}f}" for row, n in zip(rows, decimals, strict=True)]
    assert all(sum(map(str.isdigit, text.lstrip("0."))) >= 3 for text in shown), "digits that count"
