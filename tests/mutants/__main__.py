"""Plant faults one by one in a copy of the working tree, and see whether the tests notice them.

python -m tests.mutants             all of them, for a night
python -m tests.mutants fsdp 12     those of a room, and number 12
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests.mutants.faults import FAULTS, ROOT, Fault

LIMIT = 300  # seconds for the tests of a fault; what takes longer hangs, and is noticed
VERDICTS = {0: "SURVIVED", 1: "noticed", 2: "noticed"}  # by pytest's exit code


def run(folder: Path, tests: list[str], limit: int | None = LIMIT) -> int:
    """Run tests in the copy until one fails; return pytest's exit code."""
    # Without .pyc files: of two versions written in one second the wrong one might be taken.
    ours = {"PYTHONPATH": str(folder / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | ours, stdout=quiet, stderr=quiet, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def verdict(folder: Path, fault: Fault) -> str:
    """The fate of a fault: noticed, SURVIVED, or BROKEN if its line or its test is not there."""
    path = folder / fault.file
    sound = path.read_text()
    faulty = fault.planted(sound)
    if faulty is None:
        return "BROKEN"
    path.write_text(faulty)
    code = run(folder, fault.tests)
    path.write_text(sound)
    return VERDICTS.get(code, "BROKEN")


def main(wanted: set[str]) -> int:
    """Plant the faults that are wanted, or all; return how many are not noticed."""
    numbered = enumerate(FAULTS, 1)
    chosen = [(n, each) for n, each in numbered if not wanted or {str(n), each.room} & wanted]
    missed = len(chosen)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name, "copy")
        copytree(ROOT, folder, ignore=ignore_patterns(".*", "_build", "__pycache__"))
        if run(folder, sorted({test for _, fault in chosen for test in fault.tests}), None):
            sys.exit("The tests fail without a fault in the code.")
        for number, fault in chosen:
            fate = verdict(folder, fault)
            missed -= fate == "noticed"
            print(f"{number:2} {fate:8} {fault.room}: {fault.breaks}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return missed


if __name__ == "__main__":
    sys.exit(main(set(sys.argv[1:])))
