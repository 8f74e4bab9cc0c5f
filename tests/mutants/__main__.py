"""Plant faults one by one in a copy of the working tree, and see whether the tests notice them.

python -m tests.mutants             all of them, for a night
python -m tests.mutants fsdp 12     those of a room, and number 12
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Collection
from pathlib import Path
from shutil import copytree, ignore_patterns
from subprocess import DEVNULL, TimeoutExpired, run
from tempfile import TemporaryDirectory

from tests.mutants.faults import FAULTS, ROOT, Fault

LIMIT = 300  # seconds for each of the tests; a fault for which they take longer is noticed
VERDICTS = {0: "SURVIVED", 1: "noticed", 2: "noticed"}  # by pytest's exit code


def code_of(folder: Path, tests: Collection[str]) -> int:
    """Run tests in the copy until one fails; return pytest's exit code."""
    # Without .pyc files: of two versions written in one second the wrong one might be taken.
    ours = os.environ | {"PYTHONPATH": f"{folder / 'lib'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    how = {"stdout": DEVNULL, "stderr": DEVNULL, "timeout": LIMIT * len(tests)}
    try:
        return run(command, cwd=folder, env=ours, **how).returncode
    except TimeoutExpired:
        return 1


def verdict(folder: Path, fault: Fault) -> str:
    """The fate of a fault: noticed, SURVIVED, or BROKEN if its line or its test is not there."""
    path = folder / fault.file
    sound = path.read_text()
    faulty = fault.planted(sound)
    if faulty is None:
        return "BROKEN"
    path.write_text(faulty)
    code = code_of(folder, fault.tests)
    path.write_text(sound)
    return VERDICTS.get(code, "BROKEN")


def main(wanted: set[str]) -> int:
    """Plant the faults that are wanted, or all; return how many are not noticed."""
    numbered = enumerate(FAULTS, 1)
    chosen = [(n, each) for n, each in numbered if not wanted or {str(n), each.room} & wanted]
    fates = []
    with TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name, "copy")
        copytree(ROOT, folder, ignore=ignore_patterns(".*", "_build", "__pycache__"))
        if not chosen or code_of(folder, {test for _, fault in chosen for test in fault.tests}):
            sys.exit("There is no such fault, or the tests fail without one.")
        for number, fault in chosen:
            fates.append(verdict(folder, fault))
            print(f"{number:2} {fates[-1]:8} {fault.room}: {fault.breaks}", flush=True)
    noticed = fates.count("noticed")
    print(f"{noticed} of {len(chosen)} noticed")
    return len(chosen) - noticed


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("fault", nargs="*", help="a number, or a room; all if none is named")
    sys.exit(main(set(parser.parse_args().fault)))
