"""Where the course is published, the README and the landing page say so; else they say nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tools.site import ROOT, Site, published

PUBLISHED = Site("https://github.com/someone/course", "https://someone.github.io/course/")
CODESPACE = "https://codespaces.new/someone/course"


def write_config(root: Path, repository: str, book: str) -> None:
    """The two keys, as `_config.yml` has them."""
    text = f"repository: {{url: '{repository}'}}\nhtml: {{baseurl: '{book}'}}\n"
    (root / "_config.yml").write_text(text)


def wanted(root: Path) -> list[str]:
    """The README's lines about where to read, as they should be."""
    site = published(root)
    return [site.readme] if site else []


def present(root: Path) -> list[str]:
    """And as they are."""
    lines = (root / "README.md").read_text().splitlines()
    return [line for line in lines if "online" in line.lower() or "codespace" in line.lower()]


def test_the_readme_says_where_to_read_online_if_it_is_there() -> None:
    assert present(ROOT) == wanted(ROOT), "the second is what the README should say"


def test_a_readme_is_held_to_the_addresses(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Course\n")
    write_config(tmp_path, *PUBLISHED)
    assert present(tmp_path) != wanted(tmp_path)
    readme.write_text(f"# Course\n\n{PUBLISHED.readme}\n")
    assert present(tmp_path) == wanted(tmp_path)
    assert f"({PUBLISHED.book})" in PUBLISHED.readme
    assert f"({CODESPACE})" in PUBLISHED.readme
    for elsewhere in (Site("", ""), PUBLISHED._replace(book="https://someone.org/")):
        write_config(tmp_path, *elsewhere)
        assert present(tmp_path) != wanted(tmp_path)


def test_an_address_of_which_no_link_can_be_made_is_refused(tmp_path: Path) -> None:
    for site in (
        PUBLISHED._replace(book=""),
        PUBLISHED._replace(repository=""),
        PUBLISHED._replace(book="https://someone.github.io/course"),
        PUBLISHED._replace(repository="https://github.com/someone"),
        PUBLISHED._replace(repository="https://github.com/someone/course/"),
    ):
        write_config(tmp_path, *site)
        with pytest.raises(ValueError, match="or both empty"):
            published(tmp_path)


def landing_page(root: Path, site: Site) -> tuple[set[str], str]:
    """Links and text of a landing page, here only its last heading, with these addresses."""
    heading = "## How to run it"
    assert f"\n{heading}\n" in (ROOT / "book" / "index.md").read_text()
    write_config(root, *site)
    for page in ("index", "other"):
        (root / f"{page}.md").write_text(f"# Page\n\n{heading}\n\nRun `make`.\n")
    config = ["extensions=myst_parser,house.online", f"html_baseurl={site.book}"]
    config += [f"templates_path={ROOT / 'book' / '_templates'}"]
    options = ["-C", "-E", "-q", "-b", "html", *(part for each in config for part in ("-D", each))]
    subprocess.run(
        [sys.executable, "-m", "sphinx", *options, root, root / "html"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "book" / "_ext")])},
        check=True,
    )
    links, text = read(root / "html" / "other.html")
    assert not links & {CODESPACE, site.book}
    assert "git clone" not in text
    return read(root / "html" / "index.html")


def card(root: Path) -> object:
    """The address of the picture that a link to a page shows."""
    page = BeautifulSoup((root / "html" / "other.html").read_text(), "html.parser")
    (found,) = page.select("meta[property='og:image']")
    return found["content"]


def read(page: Path) -> tuple[set[str], str]:
    """The article's links and its text."""
    article = BeautifulSoup(page.read_text(), "html.parser").select_one("[role=main]")
    assert article
    links = {str(tag["href"]) for tag in article.find_all("a", href=True)}
    return links, article.get_text()


def test_the_landing_page_leads_there_once_there_are_addresses(tmp_path: Path) -> None:
    links, text = landing_page(tmp_path, Site("", ""))
    assert "Run make." in text
    assert not any(link.startswith("http") for link in links)
    assert "git clone" not in text
    assert card(tmp_path) == "_static/card.png"
    links, text = landing_page(tmp_path, PUBLISHED)
    assert card(tmp_path) == f"{PUBLISHED.book}_static/card.png", "sites ask for the full address"
    assert {CODESPACE, PUBLISHED.book} <= links
    assert f"git clone {PUBLISHED.repository}" in text
