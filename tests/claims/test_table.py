"""The table of claims and what it points to."""

import ast
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest

from course.pages.claims import Claim, as_table, load, met, unproven

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))
from house.evidence import pieces  # noqa: E402

CLAIMS = load()
SIZES = {"A": 8, "B": 10, "C": 17, "D": 11, "E": 11, "F": 8, "G": 2, "H": 6, "I": 2}
IDS = [f"{letter}{number + 1}" for letter, size in SIZES.items() for number in range(size)]
PAIRS = [(claim, evidence) for claim in CLAIMS for evidence in claim.evidence]


def claims_of(function: ast.FunctionDef) -> list[str]:
    """The ids in a test's @pytest.mark.claim decorators."""
    calls = [d for d in function.decorator_list if isinstance(d, ast.Call)]
    marks = [d for d in calls if ast.unparse(d.func) == "pytest.mark.claim"]
    return [
        argument.value for d in marks for argument in d.args if isinstance(argument, ast.Constant)
    ]


@cache
def marked_tests() -> dict[str, list[str]]:
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and claims_of(node):
                found[f"{path.relative_to(ROOT).as_posix()}::{node.name}"] = claims_of(node)
    return found


@cache
def tagged_cells(notebook: str) -> dict[str, str]:
    """Tag → source of the cell that has it, and of its checks: the next cell, if removed."""
    cells = nbformat.read(ROOT / notebook, as_version=4).cells
    found: dict[str, str] = {}
    checks = ""
    for cell in reversed(cells):
        tags = cell.metadata.get("tags", [])
        found |= dict.fromkeys(tags, f"{cell.source}\n{checks}")
        checks = cell.source if "remove-cell" in tags else ""
    return found


@pytest.mark.parametrize(("claim", "evidence"), PAIRS, ids=[f"{c.id}-{e}" for c, e in PAIRS])
def test_evidence_exists_and_says_which_claim_it_is_for(claim: Claim, evidence: str) -> None:
    if "::" in evidence:
        assert claim.id in marked_tests()[evidence]
    else:
        notebook, tag = evidence.split("#")
        assert tag == f"claim-{claim.id}"
        assert "\nassert " in tagged_cells(notebook)[tag].replace("    assert ", "\nassert ")


def test_no_marked_test_or_tagged_cell_is_left_out_of_the_table() -> None:
    listed = {(claim.id, evidence) for claim, evidence in PAIRS}
    tests = {(claim, test) for test, claims in marked_tests().items() for claim in claims}
    labs = [path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")]
    tags = {(lab, tag) for lab in labs for tag in tagged_cells(lab) if tag.startswith("claim-")}
    cells = {(tag.removeprefix("claim-"), f"{lab}#{tag}") for lab, tag in tags}
    assert tests | cells <= listed


@pytest.mark.parametrize("chapter", sorted({claim.chapter for claim in CLAIMS}))
def test_a_chapter_meets_claims_of_its_own_in_its_boxes_each_once(chapter: str) -> None:
    text = (ROOT / "book" / f"{chapter}.md").read_text()
    in_boxes = met(chapter)
    assert len(in_boxes) == len({*in_boxes})
    assert {*in_boxes} <= {claim.id for claim in CLAIMS if claim.chapter == chapter}
    boxes = text.count(":::{admonition} Often said\n")
    assert boxes <= len(in_boxes), "a box without a claim"


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


def test_the_ledger_has_all_claims_in_their_order() -> None:
    assert [claim.id for claim in CLAIMS] == IDS


def test_the_table_leads_to_each_box_cell_and_test() -> None:
    lines = as_table(CLAIMS).data.splitlines()[2:]
    for claim, line in zip(CLAIMS, lines, strict=True):
        assert f'<span id="claim-{claim.id}">' in line
        assert line.count(" | ") == 3
        box = f"#said-{claim.id}" if claim.id in met(claim.chapter) else ""
        assert f"]({claim.chapter}.html{box})" in line
        for evidence in claim.evidence:
            file, _, name = evidence.replace("::", "#").partition("#")
            page = Path(file).with_suffix(".html").as_posix()
            folder = "" if file.endswith(".ipynb") else "_modules/"
            assert f"](../{folder}{page}#{name})" in line


def test_a_page_of_evidence_has_all_of_a_file_and_a_place_for_each_test() -> None:
    tests = [each.split("::") for _, each in PAIRS if "::" in each]
    for file in sorted({file for file, _ in tests}):
        source = (ROOT / file).read_text()
        found = [*pieces(source)]
        assert "".join("".join(text.split("\n")) for _, text in found) == source.replace("\n", "")
        names = [name for name, _ in found]
        assert {name for each, name in tests if each == file} <= {*names}
        assert len(names) == len(set(names))
