"""The files of a submission, read once and before anything of it runs: a folder, a zip, or both.

Read is what grading needs: Python, notebooks, the log of the capstone, and what *Your progress* has
exported. Links are not followed, and nothing is opened but plain files, up to limits of number and
size. What was left out, and why, is a note on the learner's sheet.
"""

from __future__ import annotations

import os
import stat
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

READ = (".py", ".ipynb", ".jsonl", ".json")
ARCHIVES = (".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz")
NO_LEARNER = ("__MACOSX", "__pycache__")
NOTES = 20  # at most, on a sheet
ENTRIES, FILES = 200_000, 2_000  # looked at; read
FILE, ALL, ZIP = 2**24, 2**27, 2**28  # bytes of a file, of all of them, of a zip
EXPORTED = 2**20  # bytes of a file of puzzles; traces are larger
NAME, PATH = 255, 1000  # bytes of a name, and of a path, that any system can write


@dataclass(frozen=True)
class File:
    """A file's content, and when it was last changed."""

    data: bytes
    changed: float


@dataclass
class Handed:
    """What a learner has handed in: files by their paths, and what is to be said about others."""

    files: dict[PurePosixPath, File] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _left: int = ALL

    def add(self, path: PurePosixPath, changed: float, stream: IO[bytes]) -> None:
        """Read a file, if there is room for it."""
        if len(self.files) >= FILES:
            raise TooMuch(f"Of more than {FILES:,} files only the first were read.")
        names = [*map(os.fsencode, path.parts)]
        if max(map(len, names)) > NAME or sum(map(len, names)) > PATH:
            self.leave_out(path, "its name is too long")
            return
        data = stream.read(min(FILE, self._left) + 1)
        if path.suffix.lower() == ".json" and (len(data) > EXPORTED or b'"puzzles"' not in data):
            return
        if len(data) > FILE:
            self.leave_out(path, f"it is larger than {FILE >> 20} MiB")
        elif len(data) > self._left:
            raise TooMuch(f"After {ALL >> 20} MiB the rest was not read.")
        elif path not in self.files or self.files[path].changed < changed:
            self._left -= len(data)
            self.files[path] = File(data, changed)

    def leave_out(self, path: PurePosixPath | str, why: str) -> None:
        """Note that a file does not count."""
        if len(self.notes) < NOTES:
            self.notes.append(f"{shown(str(path))} was left out: {why}.")
        elif len(self.notes) == NOTES:
            self.notes.append("More was left out.")


class TooMuch(Exception):
    """No more is read of this submission; says what was not."""


def shown(name: str) -> str:
    """A name that can be printed and written, whatever is in it."""
    safe = (c if c.isprintable() else f"\\x{ord(c):02x}" for c in name)
    return "".join(safe)


def learners(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """What each learner has handed in, a folder, a zip or both, and the names of all else."""
    found: dict[str, list[Path]] = {}
    ignored = []
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        path = Path(entry.path)
        hidden = entry.name.startswith(".") or entry.name in NO_LEARNER
        zipped = path.suffix.lower() == ".zip" and entry.is_file(follow_symlinks=False)
        if not hidden and (zipped or entry.is_dir(follow_symlinks=False)):
            found.setdefault(shown(path.stem if zipped else path.name), []).append(path)
        elif not entry.name.startswith("."):
            ignored.append(shown(entry.name))
    return found, ignored


def read(paths: list[Path]) -> Handed:
    """Everything that grading needs of these folders and zips. Never raises."""
    handed = Handed()
    try:
        for path in paths:
            if path.is_dir():
                _read_folder(path, handed)
            else:
                _read_zip(path, PurePosixPath(), handed)
    except TooMuch as error:
        handed.notes.append(str(error))
    return handed


def _read_folder(folder: Path, handed: Handed) -> None:
    for seen, path in enumerate(_walk(folder, handed)):
        if seen >= ENTRIES:
            raise TooMuch(f"After {ENTRIES:,} files the rest was not looked at.")
        name = PurePosixPath(path.relative_to(folder))
        kind = path.suffix.lower()
        if kind in ARCHIVES:
            handed.leave_out(name, "of archives, only .zip is read")
        if kind not in (*READ, ".zip"):
            _tell_renamed(name, handed)
            continue
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                handed.leave_out(name, "it is a link, a pipe, a socket or a device")
            elif kind == ".zip":
                _read_zip(path, name.with_suffix(""), handed)
            else:
                with _opened(path) as stream:
                    handed.add(name, path.stat().st_mtime, stream)
        except OSError as error:
            handed.leave_out(name, f"it cannot be read ({error.strerror})")


def _tell_renamed(path: PurePosixPath, handed: Handed) -> None:
    """Say of a file such as ring.py.txt why it does not count."""
    if {".py", ".ipynb"} & {*map(str.lower, path.suffixes[:-1])}:
        handed.leave_out(path, f"only names that end in {', '.join(READ)} are read")


def _walk(folder: Path, handed: Handed) -> Iterator[Path]:
    """All files, but those of hidden folders; a folder that cannot be listed is noted."""

    def unread(error: OSError) -> None:
        inner = os.path.relpath(error.filename, folder)
        handed.leave_out(inner, f"it cannot be read ({error.strerror})")

    for place, folders, names in os.walk(folder, onerror=unread):
        for each in folders:
            if Path(place, each).is_symlink():
                inner = os.path.relpath(Path(place, each), folder)
                handed.leave_out(inner, "it is a link to another folder")
        folders[:] = sorted(each for each in folders if not _hidden(each))
        yield from (Path(place, each) for each in sorted(names) if not _hidden(each))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in NO_LEARNER


def _opened(path: Path) -> IO[bytes]:
    """A file that is plain even when it is opened: not a pipe by now, for which one would wait."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "it is no file any more")
    return os.fdopen(number, "rb")


def _read_zip(path: Path, at: PurePosixPath, handed: Handed) -> None:
    """The files of a zip, as if it was unpacked at this place."""
    try:
        if path.stat().st_size > ZIP:
            raise ValueError(f"it is larger than {ZIP >> 20} MiB")
        with _opened(path) as stream, zipfile.ZipFile(stream) as archive:
            for member in archive.infolist():
                _read_member(archive, member, at, handed)
    except TooMuch:
        raise
    except Exception as error:  # zipfile raises all kinds for what is no zip
        handed.leave_out(path.name, f"the zip cannot be read ({shown(str(error))})")


def _read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, at: PurePosixPath, handed: Handed
) -> None:
    inner = PurePosixPath(member.filename.replace("\\", "/"))
    kind = inner.suffix.lower()
    if member.is_dir() or any(map(_hidden, inner.parts)):
        return
    if kind in (".zip", *ARCHIVES):
        handed.leave_out(inner, "an archive in an archive is not read")
    if kind not in READ:
        _tell_renamed(inner, handed)
        return
    if inner.is_absolute() or stat.S_ISLNK(member.external_attr >> 16):
        handed.leave_out(inner, "it is a link, or its path leads out of the zip")
        return
    try:
        changed = time.mktime((*member.date_time, 0, 0, -1))
        with archive.open(member) as stream:
            handed.add(at / inner, changed, stream)
    except TooMuch:
        raise
    except Exception as error:  # encrypted, damaged, or packed in a way that is not known
        handed.leave_out(inner, f"it cannot be unpacked ({shown(str(error))})")
