"""The exercises of a lab, run as they stand in it."""

import re
from pathlib import Path
from typing import Any

import nbformat

from course.verdict import Verdict

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


class Exercises:
    """Those of one lab. `names`: what the lab's earlier cells have defined."""

    def __init__(self, lab: str, **names: Any) -> None:
        self._cells = nbformat.read(NOTEBOOKS / f"{lab}.ipynb", as_version=4).cells
        self._names = names

    def cell(self, tag: str) -> Any:
        (found,) = (c for c in self._cells if tag in c.metadata.get("tags", []))
        return found

    def verdict_of(self, tag: str) -> Verdict:
        """Run the lab's cell as it stands and return what its last line says."""
        *body, last = self.cell(tag).source.rstrip().splitlines()
        names = dict(self._names)
        exec("\n".join(body), names)
        verdict: Verdict = eval(last, names)
        return verdict


def says(diagnosis: str, verdict: Verdict) -> None:
    assert verdict.status == "wrong"
    assert re.search(diagnosis, verdict.text), verdict.text
