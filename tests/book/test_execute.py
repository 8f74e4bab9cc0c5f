"""What `make book` has nbmake do with the cells of labs and chapters."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from tests.support.processes import living, noted, wait_until
from tools import execute

RUN = """
import sys
from pathlib import Path
from tools import execute

execute.ROOT = Path(sys.argv[1])
execute.AT_ONCE = 1
execute.CACHE = execute.ROOT / "cache"
execute.documents = lambda: sorted(execute.ROOT.glob("book/*"))
sys.exit(execute.run_all())
"""
CHAPTER = """---
kernelspec: {name: python3}
---
# A chapter

```{code-cell} ipython3
6 * 7
```
"""
WAITS = """
import os, time, minidist
from tests.support.processes import note

def waits(folder):
    note(folder, os.getpid())
    time.sleep(1000)

note(FOLDER, os.getpid())
minidist.launch(waits, 1, FOLDER)
"""


@pytest.fixture
def course(temporary: Path) -> Path:
    (temporary / "book").mkdir()
    return temporary


def write(lab: Path, source: str) -> None:
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(source)]), lab)


def start(course: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(course)]
    env = os.environ | {"PYTHONPATH": str(execute.ROOT), "TMPDIR": str(course)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def test_a_cell_that_raises_is_shown_and_only_what_passed_is_kept_and_not_run_again(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, chapter = course / "book" / "lab.ipynb", course / "book" / "chapter.md"
    chapter.write_text(CHAPTER)
    write(lab, "print('so far')\n1 / 0")
    build = start(course)
    said, _ = build.communicate()
    assert build.returncode == 1, said
    assert "division by zero" in said
    assert "1 failed, 1 passed" in said
    assert "Running the cells of 2 labs and chapters" in said
    assert "[1/2]" in said

    monkeypatch.setattr(execute, "CACHE", course / "cache")
    assert execute.executed(lab) is None
    ran = execute.executed(chapter)
    assert ran is not None
    assert ran.cells[0].outputs[0].data["text/plain"] == "42"

    write(lab, "from tqdm import tqdm\nfor _ in tqdm([1]):\n    pass")
    said, _ = start(course).communicate()
    assert "chapter.ipynb" not in said
    ran = execute.executed(lab)
    assert ran is not None
    assert ran.cells[0].outputs == [], "the book does not show how far a cell was"


def test_kernels_and_their_ranks_end_with_a_build_that_is_killed(course: Path) -> None:
    folder = course / "pids"
    folder.mkdir()
    write(course / "book" / "waits.ipynb", WAITS.replace("FOLDER", repr(str(folder))))
    build = start(course)
    assert wait_until(lambda: len(noted(folder)) == 2)
    build.kill()
    build.communicate()
    assert living(noted(folder)) == set()
