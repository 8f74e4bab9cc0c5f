"""The table of claims and what it points to."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.pages.claims import Claim, as_list, load, met, unproven

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))
from house.evidence import pieces  # noqa: E402

CLAIMS = load()
PAIRS = [(claim.id, evidence) for claim in CLAIMS for evidence in claim.evidence]


def claims_of(function: ast.FunctionDef) -> list[str]:
    """The ids in a test's @pytest.mark.claim decorators."""
    calls = [d for d in function.decorator_list if isinstance(d, ast.Call)]
    marks = [d for d in calls if ast.unparse(d.func) == "pytest.mark.claim"]
    return [
        argument.value for d in marks for argument in d.args if isinstance(argument, ast.Constant)
    ]


def marked_tests() -> Iterator[tuple[str, str]]:
    """The id of a claim, and a test that says it shows it."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "pytest.mark.claim" not in (source := path.read_text()):
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                test = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
                yield from ((claim, test) for claim in claims_of(node))


def tagged_cells() -> Iterator[tuple[str, str, str]]:
    """The id of a claim, a lab's cell with its tag, and the cell's source.

    With that of its checks: the next cell, if it is removed from the page.
    """
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        checks = ""
        for cell in reversed(json.loads(path.read_text())["cells"]):
            source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
            for tag in tags:
                if tag.startswith("claim-"):
                    where = f"{path.relative_to(ROOT).as_posix()}#{tag}"
                    yield tag.removeprefix("claim-"), where, f"{source}\n{checks}"
            checks = source if "remove-cell" in tags else ""


def test_the_table_lists_all_marked_tests_and_tagged_cells_and_nothing_else() -> None:
    cells = [*tagged_cells()]
    there = {*marked_tests(), *((claim, where) for claim, where, _ in cells)}
    offenders = [f"{claim}: {each}: no such mark or tag" for claim, each in {*PAIRS} - there]
    offenders += [f"{claim}: {each}: not in the ledger" for claim, each in there - {*PAIRS}]
    asserts = re.compile(r"^ *assert ", re.MULTILINE)
    offenders += [
        f"{where}: asserts nothing" for _, where, code in cells if not asserts.search(code)
    ]
    assert not offenders, "\n".join(sorted(offenders))


def test_a_chapter_meets_claims_of_its_own_in_its_boxes_each_once() -> None:
    offenders = []
    for chapter in sorted({claim.chapter for claim in CLAIMS}):
        text, boxes = (ROOT / "book" / f"{chapter}.md").read_text(), met(chapter)
        own = [claim.id for claim in CLAIMS if claim.chapter == chapter]
        offenders += [f"{chapter}: {each} is another's" for each in boxes if each not in own]
        offenders += [f"{chapter}: {each} twice" for each in {*boxes} if boxes.count(each) > 1]
        if text.count(":::{admonition} Often said\n") > len(boxes):
            offenders.append(f"{chapter}: a box without a claim")
    assert not offenders, "\n".join(offenders)


LAB_RAN = "tests/book/test_labs.py::test_a_document_ran_to_its_end[notebooks/x.ipynb]"


def test_unproven_wants_every_piece_of_evidence() -> None:
    claim = Claim(
        "X1", "it is so", "true", "it is", "x", ["tests/a.py::f", "notebooks/x.ipynb#tag"]
    )
    assert unproven([claim], []) == {"X1": claim.evidence}
    assert unproven([claim], ["tests/a.py::f[3-True]"]) == {"X1": ["notebooks/x.ipynb#tag"]}
    assert unproven([claim], ["tests/a.py::f[3]", LAB_RAN]) == {}
    assert unproven([claim], ["tests/a.py::fg", LAB_RAN]) == {"X1": ["tests/a.py::f"]}


def test_a_claim_without_evidence_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.yml"
    row = "- {id: X, claim: c, verdict: wrong, shown: s, chapter: x, evidence: %s}\n"
    path.write_text(row % "[]")
    with pytest.raises(ValueError, match="claim X"):
        load(path)
    path.write_text(row % "[a]" * 2)
    with pytest.raises(ValueError, match="claim X"):
        load(path)


def test_the_page_leads_to_each_box_cell_and_test() -> None:
    lines = as_list(CLAIMS).data.splitlines()
    for claim, line in zip(CLAIMS, lines, strict=True):
        assert f'<span id="claim-{claim.id}">' in line
        box = f"#said-{claim.id}" if claim.id in met(claim.chapter) else ""
        assert f"]({claim.chapter}.html{box})" in line
        for evidence in claim.evidence:
            file, _, name = evidence.replace("::", "#").partition("#")
            page = Path(file).with_suffix(".html").as_posix()
            folder = "" if file.endswith(".ipynb") else "_modules/"
            assert re.search(rf"\]\(\.\./{folder}{page}#{name}[ )]", line)


def test_a_page_of_evidence_has_all_of_a_file_and_a_place_for_each_test() -> None:
    tests = [each.split("::") for _, each in PAIRS if "::" in each]
    for file in sorted({file for file, _ in tests}):
        source = (ROOT / file).read_text()
        found = [*pieces(source)]
        assert "".join("".join(text.split("\n")) for _, text in found) == source.replace("\n", "")
        names = [name for name, _ in found]
        assert {name for each, name in tests if each == file} <= {*names}
        assert len(names) == len(set(names))
