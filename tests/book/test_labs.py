"""What the book shows of labs and chapters are the outputs of their cells as they stand now.

`make book` runs them, and fails where a cell raises; so their assertions are evidence for claims.
"""

from pathlib import Path

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
