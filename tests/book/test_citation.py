"""How to cite the course: one statement for machines, one for readers, and the package's own."""

import re
import sys
import tomllib

import yaml
from pybtex.database import parse_file

from tools.work import ROOT

sys.path.append(str(ROOT / "book" / "_ext"))
from house.references import shorter

CFF = yaml.safe_load((ROOT / "CITATION.cff").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text())


def test_the_file_for_machines_has_what_its_format_wants_and_agrees_with_the_package() -> None:
    texts = {"cff-version", "message", "type", "title", "abstract", "version", "license"}
    assert (
        {"cff-version", "message", "title", "authors"} <= {*CFF} <= texts | {"authors", "keywords"}
    )
    assert all(isinstance(value, str) for key, value in CFF.items() if key in texts)
    assert (CFF["cff-version"], CFF["type"]) == ("1.2.0", "software")
    assert (CFF["version"], CFF["license"]) == (PROJECT["version"], PROJECT["license"])
    assert CFF["authors"] == PROJECT["authors"] == [{"name": CONFIG["author"]}]
    assert CFF["title"] == CONFIG["title"]


def test_the_book_says_the_same() -> None:
    page = (ROOT / "book" / "references.md").read_text()
    fields = dict(re.findall(r"^  (\w+) += \{(.+)\},$", page, re.MULTILINE))
    told = {key: fields[key] for key in ("title", "author", "version", "year")}
    author = f"{{{CFF['authors'][0]['name']}}}"
    expected = {"title": CFF["title"], "author": author, "version": CFF["version"]}
    assert told == expected | {"year": CONFIG["copyright"]}


def test_works_are_cited_and_stand_briefly_in_the_list() -> None:
    works = parse_file(str(ROOT / "book" / "references.bib")).entries
    pages = [*(ROOT / "book").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    roles = re.findall(r"\{cite:\w+\}`([^`]+)`", "\n".join(page.read_text() for page in pages))
    assert {*works} == {key.strip() for role in roles for key in role.split(",")}
    brief = shorter(works["narayanan2021"])
    assert [str(person) for person in brief.persons["author"]][1:] == ["others"]
    assert brief.fields["booktitle"] == "{SC}"
    assert "pages" not in brief.fields
    assert works["narayanan2021"].fields["booktitle"].startswith("Proceedings of the International")
