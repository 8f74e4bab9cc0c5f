"""`make pdf`: the whole book in one file, printed from its pages by a Chromium.

The articles of all pages are put one behind another, with anchors that name their pages, so that a
link to another page leads to another place of the file.
"""

import posixpath
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from playwright.sync_api import sync_playwright
from sphinx_external_toc.parsing import parse_toc_yaml

from tools.chromium import FLAGS, HOW_TO_INSTALL, PATIENCE, find_chromium

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"
FOLDER = ROOT / "_build" / "pdf"  # beside the pages: their "../_static" is "../html/_static" here
POINTERS = "id", "for", "aria-labelledby", "aria-describedby", "aria-controls"
STYLE = """
@page { size: A4; margin: 16mm 15mm 18mm; }
body { font-size: 10pt; }
article { break-before: page; }
article.contents { break-before: auto; }
.bd-main .bd-content .bd-article h1 { display: block !important; } /* the theme has it elsewhere */
.contents li { margin: 0.15rem 0; }
.headerlink, .copybtn, .prev-next-area, fieldset.verdicts { display: none !important; }
"""
FOOTER = """<div style="font-size: 8pt; width: 100%; text-align: center">
<span class="pageNumber"></span></div>"""


def anchor(page: str, name: str = "") -> str:
    """Where a page begins in the file, or one of its anchors."""
    return page.replace("/", "-") + (f"--{name}" if name else "")


def article(page: str, pages: set[str]) -> Tag:
    """A page's own part, with its anchors and links renamed."""
    found = BeautifulSoup((HTML / f"{page}.html").read_text(), "html.parser").article
    assert found, page
    for tag in found.find_all(True):
        for key in POINTERS:
            if key in tag.attrs:
                names = str(tag[key]).split()
                tag[key] = " ".join(anchor(page, name) for name in names)
        for key in ("src", "href", "data"):
            if key in tag.attrs:
                tag[key] = address(str(tag[key]), page, pages)
    found["id"] = anchor(page)
    return found


def address(link: str, page: str, pages: set[str]) -> str:
    """A link of a page, in the file."""
    if re.match(r"[a-z]+:", link):
        return link
    path, _, name = link.partition("#")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if (bare := there.removesuffix(".html")) in pages:
        return f"#{anchor(bare, name)}"
    return f"../html/{there}" + (f"#{name}" if name else "")


def contents(articles: dict[str, Tag]) -> str:
    """The list of pages that the file begins with."""
    lines = ""
    for page, found in articles.items():
        title = found.h1.get_text().rstrip("#").strip() if found.h1 else page
        lines += f'<li><a href="#{anchor(page)}">{title}</a></li>'
    return f'<article class="bd-article contents"><h1>Contents</h1><ul>{lines}</ul></article>'


def whole(pages: list[str]) -> str:
    """All pages as one."""
    source = (HTML / f"{pages[0]}.html").read_text()
    head = source[: source.index("</head>")].replace('="../_', '="../html/_')
    articles = {page: article(page, set(pages)) for page in pages}
    body = "\n".join(str(each) for each in articles.values())
    inside = f'<div class="bd-article-container">{contents(articles)}{body}</div>'
    main = f'<main class="bd-main"><div class="bd-content">{inside}</div></main>'
    return f"{head}<style>{STYLE}</style></head><body>{main}</body></html>"


def printed(source: Path, target: Path) -> None:
    """Print a page.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    with sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            raise FileNotFoundError(HOW_TO_INSTALL)
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE)
        page = chromium.new_page(color_scheme="light", reduced_motion="reduce")
        page.set_default_timeout(10 * PATIENCE)
        page.goto(source.as_uri())
        page.evaluate("() => window.MathJax?.startup.promise")
        aside = target.with_suffix(".new")
        page.pdf(path=aside, prefer_css_page_size=True, print_background=True, outline=True,
                 tagged=True, display_header_footer=True, header_template="<span></span>",
                 footer_template=FOOTER)  # fmt: skip
        aside.replace(target)
        chromium.close()


def steps() -> Iterator[str]:
    """Print the book; what is being done, as it is done."""
    pages = list(parse_toc_yaml(ROOT / "_toc.yml"))
    yield f"Putting {len(pages)} pages one behind another ..."
    FOLDER.mkdir(exist_ok=True)
    source, target = FOLDER / "whole.html", FOLDER / "book.pdf"
    source.write_text(whole(pages))
    yield "Printing them; that takes a minute or two ..."
    printed(source, target)
    yield f"Open {target.as_uri()} ({target.stat().st_size / 1e6:.0f} MB)"


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    try:
        for line in steps():
            print(line, flush=True)
    except FileNotFoundError as error:
        sys.exit(str(error))
