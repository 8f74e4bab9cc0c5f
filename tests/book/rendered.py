"""The pages of the rendered book, each parsed once."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from bs4 import BeautifulSoup

from tools.book import BUILD

HTML = BUILD / "html"


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


@cache
def soup(name: str) -> BeautifulSoup:
    """The page without the colours of its code: half of its elements, of which no rule speaks."""
    pieces = re.split("(<pre>.*?</pre>)", (HTML / name).read_text(), flags=re.DOTALL)
    pieces[1::2] = [re.sub("</?span[^>]*>", "", code) for code in pieces[1::2]]
    return BeautifulSoup("".join(pieces), "html.parser")
