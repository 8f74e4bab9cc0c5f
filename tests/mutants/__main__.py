"""Plant faults in the library one by one, and see whether the tests notice them.

python -m tests.mutants                 all of them
python -m tests.mutants ddp zero 12     those of two rooms, and number 12

It is for whoever changes the library or its tests: what was noticed before should still be. It is
no part of `make test`. The working tree is copied, and left alone.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.mutants.faults import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
LIMIT = 300  # seconds for the tests of a mutant; who takes longer hangs, and is noticed


def copy_into(folder: Path) -> None:
    """Copy the tracked files, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@cache
def sound(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass without a fault."""
    return passes(folder, tests)


def passes(folder: Path, tests: tuple[str, ...]) -> bool:
    """Run tests in the copy."""
    # Without .pyc files: of two versions written in one second the wrong one might be taken.
    ours = {"PYTHONPATH": str(folder / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | ours, stdout=quiet, stderr=quiet, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def mutated(text: str, mutant: Mutant) -> str | None:
    """The source with its fault; None if the line is not there, or more than once."""
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.strip() == mutant.old]
    if len(places) != 1:
        return None
    lines[places[0]] = lines[places[0]].replace(mutant.old, mutant.new)
    return "".join(lines)


@contextmanager
def planted(path: Path, text: str) -> Iterator[None]:
    """Let the file have another text."""
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


def judge(folder: Path, mutant: Mutant) -> str:
    """What becomes of a mutant: noticed, SURVIVED, or BROKEN if it cannot be told."""
    path, tests = folder / mutant.file, tuple(mutant.tests)
    faulty = mutated(path.read_text(), mutant) if path.is_file() else None
    if faulty is None:
        return "BROKEN (no such line)"
    if not sound(folder, tests):
        return "BROKEN (the tests fail without it)"
    with planted(path, faulty):
        return "noticed" if not passes(folder, tests) else "SURVIVED"


def main(wanted: list[str]) -> int:
    """Judge those that are wanted, or all; 1 if one is not noticed that should be."""
    numbered = list(enumerate(MUTANTS, 1))
    chosen = [(n, m) for n, m in numbered if not wanted or {str(n), m.room} & set(wanted)]
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        copy_into(Path(name))
        for number, mutant in chosen:
            start = time.monotonic()
            verdicts.append(verdict := judge(Path(name), mutant) + " (known)" * mutant.known)
            took = f"{time.monotonic() - start:5.1f} s"
            print(f"{number:3} {took}  {verdict:18} {mutant.room}: {mutant.new}", flush=True)
    noticed = sum(verdict.startswith("noticed") for verdict in verdicts)
    print(f"{noticed} of {len(chosen)} noticed")
    fine = ("noticed", "noticed (known)", "SURVIVED (known)")
    return int(any(verdict not in fine for verdict in verdicts) or not chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
