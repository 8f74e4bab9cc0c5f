"""Write `handout/`: the course for a class, without solutions.

`make lab` and `make grade` work in it. The lesson `from_scratch` stays, because chapters print it
and labs measure it; tests do not, because they run the solutions.
"""

import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import nbformat

from tools.readable import Cell, is_solution, tags
from tools.work import ROOT

LEFT_OUT = (
    "tests/",
    ".ci/",
    "lib/course/chapters/capstone/answers/",
    "lib/course/puzzles/answers/",
)
EXERCISES = re.compile(r"^## Exercises\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SOLVED = re.compile(
    r"^:::\{(?:solution\}|dropdown\} [^\n]*\n:class-container: spoiler\n).*?^:::\n\n?",
    re.MULTILINE | re.DOTALL,
)
CELL = re.compile(r"^```\{code-cell\}.*?^```\n\n?", re.MULTILINE | re.DOTALL)
TESTS = re.compile(r"^make test .*\n", re.MULTILINE)
OR_SOLVED = re.compile(r",? \(?or (else )?the solution('s)?(, until yours is right\))?")
ADDRESS = re.compile(r'\b(url|baseurl): "[^"]*"')


def without_solutions(source: Path) -> bytes:
    """A file without its solutions, and without the address of the book that has them."""
    if source.suffix == ".ipynb":
        lab = nbformat.read(source, as_version=4)
        lab.cells = [cell for cell in lab.cells if not tells(cell)]
        for cell in lab.cells:
            cell.source = OR_SOLVED.sub("", cell.source)
        return (str(nbformat.writes(lab)) + "\n").encode()
    if source.parent == ROOT / "book" and source.suffix == ".md":
        text = EXERCISES.sub(lambda part: CELL.sub("", part[0]), source.read_text())
        text = SOLVED.sub("", text)
        return CELL.sub(lambda cell: "" if "spoiler" in cell[0] else cell[0], text).encode()
    if source == ROOT / "README.md":
        return TESTS.sub("", source.read_text()).encode()
    if source == ROOT / "_config.yml":
        return without_addresses(source.read_text()).encode()
    return source.read_bytes()


def without_addresses(config: str) -> str:
    """`_config.yml` of a book that is published nowhere."""
    return ADDRESS.sub(r'\1: ""', config)


def tells(cell: Cell) -> bool:
    """Whether it is a solution, or tagged as one that gives it away."""
    return is_solution(cell) or "spoiler" in tags(cell)


def write(target: Path) -> None:
    """Copy the course's files to a new folder.

    Raises:
        FileExistsError: the folder is there.
    """
    if target.exists():
        raise FileExistsError(f"{target} is there already; remove it, or take another name")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    aside = target.with_name(f"{target.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if not name.startswith(LEFT_OUT) and (ROOT / name).exists():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).write_bytes(without_solutions(ROOT / name))
            (aside / name).chmod((ROOT / name).stat().st_mode)
    aside.rename(target)


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    try:
        write(ROOT / "handout")
    except FileExistsError as error:
        sys.exit(str(error))
    print("handout/ is the course without solutions.")
