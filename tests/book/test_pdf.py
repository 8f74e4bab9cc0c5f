"""`make pdf`: links lead to other places of the file, and Chromium prints it."""

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tools import pdf

PAGES = ["book/index", "book/ring", "notebooks/ring", "book/glossary"]


@pytest.fixture(scope="module")
def together(book_is_built: None) -> BeautifulSoup:
    return BeautifulSoup(pdf.whole(PAGES), "html.parser")


def test_the_file_has_contents_and_every_page_once(together: BeautifulSoup) -> None:
    contents, *articles = together.find_all("article")
    assert [each["id"] for each in articles] == [pdf.anchor(page) for page in PAGES]
    links = [each["href"] for each in contents.find_all("a")]
    assert links == [f"#{pdf.anchor(page)}" for page in PAGES]
    assert [each.h1 is not None for each in articles] == [True] * len(PAGES)


def test_anchors_are_unique_and_links_to_pages_lead_to_them(together: BeautifulSoup) -> None:
    names = [tag["id"] for tag in together.find_all(id=True)]
    assert len(names) == len(set(names))
    links = [str(tag["href"]) for tag in together.find_all("a", href=True)]
    inside = [link[1:] for link in links if link.startswith("#")]
    assert len(inside) > 100
    assert not [each for each in inside if each and each not in names]
    assert "book-ring--fig-ring-tour" in inside
    assert not [link for link in links if re.match(r"(?!https?:|#|mailto:|\.\./html/)", link)]


def test_pictures_are_found_beside_the_pages(together: BeautifulSoup) -> None:
    pictures = [str(tag["src"]) for tag in together.find_all("img", src=True)]
    local = [each for each in pictures if not each.startswith("data:")]
    assert len(local) > 3
    assert all((pdf.FOLDER / each).resolve().exists() for each in local)


def test_a_link_to_what_is_not_printed_goes_to_the_built_page_or_stays() -> None:
    pages = set(PAGES)
    assert pdf.address("ring.html#cost", "book/index", pages) == "#book-ring--cost"
    assert pdf.address("../notebooks/ring.html", "book/index", pages) == "#notebooks-ring"
    assert pdf.address("#a", "book/ring", pages) == "#book-ring--a"
    assert pdf.address("https://pytorch.org/#a", "book/ring", pages) == "https://pytorch.org/#a"
    assert pdf.address("zero.html", "book/ring", pages) == "../html/book/zero.html"


def test_chromium_prints_it_with_page_numbers_and_an_outline(tmp_path: Path) -> None:
    source, target = tmp_path / "whole.html", tmp_path / "book.pdf"
    parts = "".join(f"<article><h1>Part {n}</h1><p>words</p></article>" for n in range(3))
    source.write_text(f"<html><head><style>{pdf.STYLE}</style></head><body>{parts}</body></html>")
    try:
        pdf.printed(source, target)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    printed = target.read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", printed)) == 3
    assert b"/Outlines" in printed
    assert not target.with_suffix(".new").exists()


def test_without_a_chromium_it_says_how_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "find_chromium", lambda playwright: None)
    with pytest.raises(FileNotFoundError, match="apt-get install chromium"):
        pdf.printed(tmp_path / "whole.html", tmp_path / "book.pdf")
