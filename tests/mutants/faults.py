"""Single-line faults of the lesson and of the library's nuclei, as real mistakes would make them.

They stand in `planted/ROOM.yml`, one for each kind of mistake. When the code changes, `file`, `old`
and `tests` follow it; what a fault breaks stays the same.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[2]


class Fault(NamedTuple):
    """A line that becomes another one."""

    room: str  #: the name of the file that lists it
    breaks: str  #: what goes wrong, in words
    file: str  #: relative to the root of the repository
    old: str  #: the line as it should be, without its indentation; it occurs once in the file
    new: str  #: the line instead
    tests: list[str]  #: what should notice it, as pytest's targets

    def planted(self, text: str) -> str | None:
        """The file's text with the fault in it; None if the line is not there exactly once."""
        lines = text.splitlines()
        places = [place for place, line in enumerate(lines) if line.strip() == self.old]
        for place in places:
            lines[place] = lines[place].replace(self.old, self.new)
        return "\n".join(lines) + "\n" if len(places) == 1 else None


FAULTS = [
    Fault(path.stem, **fault)
    for path in sorted((Path(__file__).parent / "planted").glob("*.yml"))
    for fault in yaml.safe_load(path.read_text())
]
