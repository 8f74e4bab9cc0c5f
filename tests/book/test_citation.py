"""How to cite the course: one statement for machines, one for readers, and the package's own."""

import re
import tomllib

import yaml

from tools.work import ROOT

CFF = yaml.safe_load((ROOT / "CITATION.cff").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text())
KEYS = {"cff-version", "message", "type", "title", "abstract", "authors", "version", "license"}


def test_the_file_for_machines_has_what_its_format_wants() -> None:
    assert {"cff-version", "message", "title", "authors"} <= {*CFF} <= KEYS | {"keywords"}
    assert CFF["cff-version"] == "1.2.0"
    assert CFF["type"] == "software"
    assert all(isinstance(value, str) for key, value in CFF.items() if key in KEYS - {"authors"})


def test_it_agrees_with_the_package_and_the_book() -> None:
    assert CFF["version"] == PROJECT["version"]
    assert CFF["license"] == PROJECT["license"]
    assert CFF["authors"] == PROJECT["authors"] == [{"name": CONFIG["author"]}]
    assert CFF["title"] == CONFIG["title"]


def test_the_book_says_the_same() -> None:
    page = (ROOT / "book" / "references.md").read_text()
    fields = dict(re.findall(r"^  (\w+) += \{(.+)\},$", page, re.MULTILINE))
    assert fields["title"] == CFF["title"]
    assert fields["author"] == f"{{{CFF['authors'][0]['name']}}}"
    assert fields["version"] == CFF["version"]
    assert fields["year"] == CONFIG["copyright"]
