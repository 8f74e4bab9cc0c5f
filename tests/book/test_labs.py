"""What the book shows of labs and chapters are the outputs of their cells as they stand now.

`make book` runs them, and fails where a cell raises; so their assertions are evidence for claims.
"""

import re
from pathlib import Path

import nbformat
import pytest

from tools.execute import ROOT, documents, executed, read


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


@pytest.mark.parametrize(
    "document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_a_page_is_read_without_checks_and_without_scrolling(document: Path) -> None:
    code = [cell.source for cell in read(document).cells if visible(cell)]
    assert [each for each in code if len(each.splitlines()) > LONGEST] == []
    checks = re.compile(r"^\s*assert\b|\b(?:glue|say)\(|# fmt:", re.MULTILINE)
    assert [each for each in code if checks.search(each)] == []


def visible(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and not HIDDEN & {*cell.metadata.get("tags", [])}
