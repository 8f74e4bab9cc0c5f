"""What of a submission counts: a folder of the project, a notebook per lab, a file of puzzles.

Submissions come as learning platforms and learners leave them: nested, renamed, with older copies.
Of several copies the newest counts that somebody has worked in; the others are named in a note.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from course.project.report import TARGETS
from course.puzzles.again import answers_in
from course.submissions.files import Handed, shown
from course.submissions.labs import Cell, cells_in, lab_of, with_tags, written

PROJECT = {f"{file}.py" for file, _ in TARGETS.values()} | {"capstone.py"}
NAMED = 5  # of the copies that do not count
OURS = {"from_scratch", "lib", "site-packages"}  # folders of the course, if somebody sends it all


@dataclass(frozen=True)
class Submission:
    """Files by their paths in `mine`, those beside the notebooks, labs' cells, puzzles' answers."""

    mine: dict[str, bytes] = field(default_factory=dict)
    helpers: dict[str, bytes] = field(default_factory=dict)
    labs: dict[str, list[Cell]] = field(default_factory=dict)
    puzzles: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    changed: float = 0.0  # when the newest of these was

    @property
    def digest(self) -> str:
        """A hash of all that counts."""
        parts = self.mine, self.helpers, self.labs, self.puzzles
        all_of = [sorted(part.items()) for part in parts]
        return hashlib.sha256(repr(all_of).encode()).hexdigest()


def counted(handed: Handed) -> Submission:
    """What counts of what was handed in."""
    notes = [*handed.notes]
    mine, files = _project(handed, notes)
    labs, paths = _labs(handed, notes)
    puzzles, exported = _puzzles(handed, notes)
    beside = {path.parent for path in paths}
    helpers = {
        path.name: file.data
        for path, file in handed.files.items()
        if path.suffix == ".py" and path.parent in beside and path not in files
    }
    if mine is None:
        notes.append("There is no folder `mine` with the project's files.")
    changed = max((handed.files[path].changed for path in [*files, *paths, *exported]), default=0.0)
    own = dict[str, bytes]()
    for path in files:
        inner = path.relative_to(mine or "")
        if any(folder.suffix == ".py" for folder in inner.parents):
            notes.append(f"{shown(str(path))} was left out: its folder has the name of a file.")
        else:
            own[str(inner)] = handed.files[path].data
    return Submission(own, helpers, labs, puzzles, notes, changed)


def _project(handed: Handed, notes: list[str]) -> tuple[PurePosixPath | None, list[PurePosixPath]]:
    """The folder of the project, and its files."""
    folders: dict[PurePosixPath, list[PurePosixPath]] = {}
    for path in handed.files:
        for folder in path.parents:
            if folder.name == "mine":
                folders.setdefault(folder, []).append(path)
    if not folders:  # somebody has handed in what is in it
        for path in handed.files:
            if path.name in PROJECT and not OURS & {*path.parts}:
                folders.setdefault(path.parent, [])
        for folder, files in folders.items():
            files += [p for p in handed.files if p.parent == folder and p.suffix != ".ipynb"]
    if not folders:
        return None, []

    def newest(folder: PurePosixPath) -> tuple[float, int]:
        return max(handed.files[path].changed for path in folders[folder]), -len(folder.parts)

    mine = max(folders, key=newest)
    _tell(notes, mine, [folder for folder in folders if folder != mine])
    return mine, folders[mine]


def _labs(handed: Handed, notes: list[str]) -> tuple[dict[str, list[Cell]], list[PurePosixPath]]:
    """The cells of each lab, and the notebooks that they are from."""
    copies: dict[str, dict[PurePosixPath, list[Cell]]] = {}
    others = list[PurePosixPath]()
    for path, file in handed.files.items():
        if path.suffix.lower() == ".ipynb":
            try:
                cells = with_tags(path.stem, cells_in(file.data))
            except ValueError as error:
                notes.append(f"{shown(str(path))} was left out: {error}.")
                continue
            if lab := lab_of(path.stem, cells):
                copies.setdefault(lab, {})[path] = cells
            else:
                others.append(path)
    if others:
        notes.append(f"No lab has the exercises of {_named(others)}, nor its name.")
    labs, paths = {}, []
    for lab, each in sorted(copies.items()):

        def rank(path: PurePosixPath) -> tuple[bool, float, int]:
            worked_in = written(lab, each[path]) > 0  # noqa: B023  # called right here
            return worked_in, handed.files[path].changed, -len(path.parts)

        best = max(each, key=rank)
        _tell(notes, best, [path for path in each if path != best and rank(path)[0]])
        labs[lab] = each[best]
        paths.append(best)
    return labs, paths


def _puzzles(handed: Handed, notes: list[str]) -> tuple[dict[str, str], list[PurePosixPath]]:
    """The answers to puzzles, and the file that they are from: the newest that has any."""
    copies = dict[PurePosixPath, dict[str, str]]()
    for path, file in handed.files.items():
        if path.suffix.lower() == ".json":
            try:
                copies[path] = answers_in(file.data.decode())
            except ValueError as error:
                notes.append(f"{shown(str(path))} was left out: {error}.")
    exported = [path for path in copies if copies[path]]
    if not exported:
        return {}, []
    best = max(exported, key=lambda path: (handed.files[path].changed, -len(path.parts)))
    _tell(notes, best, [path for path in exported if path != best])
    return copies[best], [best]


def _tell(notes: list[str], taken: PurePosixPath, others: list[PurePosixPath]) -> None:
    if others:
        notes.append(f"{shown(str(taken))} counts, the newest copy; not {_named(others)}.")


def _named(paths: list[PurePosixPath]) -> str:
    more = ", ..." if len(paths) > NAMED else ""
    return ", ".join(shown(str(path)) for path in paths[:NAMED]) + more
