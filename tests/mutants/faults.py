"""The faults: in each a single line is another one, as a real mistake would be.

They stand in `planted/ROOM.yml`, a file for each part of the project. When the code changes,
`file`, `old` and `tests` follow it; what a fault breaks stays the same.
"""

from pathlib import Path
from typing import NamedTuple

import yaml


class Mutant(NamedTuple):
    """One fault.

    Attributes:
        room: the part of the project that it is in: the name of the file that lists it.
        breaks: what goes wrong, in words.
        file: relative to the root of the repository.
        old: the line as it should be, without its indentation; it occurs once in the file.
        new: the line instead.
        tests: what should notice it, as pytest's targets.
        known: no test notices it yet.
    """

    room: str
    breaks: str
    file: str
    old: str
    new: str
    tests: list[str]
    known: bool = False


MUTANTS = [
    Mutant(path.stem, **fault)
    for path in sorted((Path(__file__).parent / "planted").glob("*.yml"))
    for fault in yaml.safe_load(path.read_text())
]
