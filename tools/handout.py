"""Write `handout/`: the course for a class, whose labs have no solutions.

`make lab` and `make grade` work in it. The lesson `from_scratch` stays, because chapters print it
and labs measure it; tests do not, because they run the solutions.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

from tools.readable import is_solution
from tools.work import ROOT

LEFT_OUT = ("tests/", ".ci/")


def without_solutions(source: Path) -> bytes:
    """A notebook without its solutions; any other file as it is."""
    if source.suffix != ".ipynb":
        return source.read_bytes()
    lab = nbformat.read(source, as_version=4)
    lab.cells = [cell for cell in lab.cells if not is_solution(cell)]
    return (str(nbformat.writes(lab)) + "\n").encode()


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
    try:
        write(ROOT / "handout")
    except FileExistsError as error:
        sys.exit(str(error))
    print("handout/ is the course without the labs' solutions.")
