"""What the book shows of labs and chapters are the outputs of their cells as they stand now.

`make book` runs them, and fails where a cell raises; so their assertions are evidence for claims.
"""

import re
from pathlib import Path

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
CHECKS = re.compile(r"^\s*assert\b|\b(?:glue|say)\(|# fmt:", re.MULTILINE)


def test_a_page_is_read_without_checks_and_without_scrolling() -> None:
    offenders = [
        f"{document.name}: {cell.source[:200]}"
        for document in documents()
        for cell in read(document).cells
        if cell.cell_type == "code" and not HIDDEN & {*cell.metadata.get("tags", [])}
        if len(cell.source.splitlines()) > LONGEST or CHECKS.search(cell.source)
    ]
    assert not offenders, "\n".join(offenders)
