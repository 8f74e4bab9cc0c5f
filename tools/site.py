"""Where the course is published: two addresses in `_config.yml`, both empty until it is.

`python -m tools.site` prints the book's as a GitHub workflow takes it: `book=ADDRESS`.
"""

import re
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")
BOOK = re.compile(r"https://\S+/")


class Site(NamedTuple):
    """The two addresses, and what follows from them."""

    repository: str
    book: str

    @property
    def codespace(self) -> str:
        """Where GitHub opens the course in a browser, with all that it needs."""
        return self.repository.replace("github.com", "codespaces.new")

    @property
    def readme(self) -> str:
        """The README's line about them, which a test asks for."""
        return (
            f"**[Read it online]({self.book})**, or [open it in a codespace]({self.codespace}), "
            "where nothing needs installing."
        )


def published(root: Path) -> Site | None:
    """The course's addresses, or None as long as it has none.

    Raises:
        ValueError: only one is set, or one is not of the form that links are made from.
    """
    config = yaml.safe_load((root / "_config.yml").read_text())
    site = Site(config["repository"]["url"], config["html"]["baseurl"])
    if not any(site):
        return None
    if not REPOSITORY.fullmatch(site.repository) or not BOOK.fullmatch(site.book):
        raise ValueError(
            "_config.yml: expected repository.url like https://github.com/OWNER/REPOSITORY and "
            f"html.baseurl like https://OWNER.github.io/REPOSITORY/, or both empty; got {site}"
        )
    return site


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    found = published(ROOT)
    print(f"book={found.book if found else ''}")
