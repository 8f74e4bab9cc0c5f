"""What the book shows of labs and chapters are the outputs of their cells as they stand now.

`make book` runs them, and fails where a cell raises; so their assertions are evidence for claims.
"""

import re
from pathlib import Path

import nbformat
import pytest

from tools.execute import ROOT, documents, executed


@pytest.mark.parametrize(
    "document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_a_document_ran_to_its_end(document: Path) -> None:
    ran = executed(document)
    assert ran is not None, "its cells have not run since they were changed: `make book`"
    cells = [cell for cell in ran.cells if cell.cell_type == "code" and cell.source.strip()]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [out for cell in cells for out in cell.outputs if out.output_type == "error"] == []


HIDDEN = {"remove-cell", "hide-cell", "hide-input", "remove-input"}
LONGEST = 25  # lines of a cell that a reader sees


@pytest.mark.parametrize("lab", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_lab_is_read_without_checks_and_without_scrolling(lab: Path) -> None:
    cells = nbformat.read(lab, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    seen = [cell for cell in code if not HIDDEN & set(cell.metadata.get("tags", []))]
    lines = {cell.id: len(cell.source.splitlines()) for cell in seen}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}
    checks = re.compile(r"^\s*assert\b|\bglue\(|# fmt:", re.MULTILINE)
    assert [cell.id for cell in seen if checks.search(cell.source)] == []
