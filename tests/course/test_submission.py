"""`make grade` survives what a reader writes: it names file, line and function, and goes on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

import minidist
from course.project import report, submission
from course.project.submission import guarded
from minidist import launch
from tests.course.milestones import LESSON, write
from tests.course.verdicts import says

TYPO = "import torch\n\n\ndef all_reduce(*tensors):\n    dits.all_reduce(*tensors)\n\n\n"
TYPO += "reduce_scatter = all_gather = all_reduce\n"
SPINS = "import time\n\nwhile True:\n    time.sleep(0.1)\n"
PATCHES = {
    "course.project.check.run": "from course.project import check\n\ncheck.run = lambda *_: None\n",
    "time.perf_counter": "import time\n\ntime.perf_counter = lambda: 0.0\n",
    "torch.allclose": "import torch\n\ntorch.allclose = lambda *_: True\n",
}
ON_FOUR = """
import time

import torch.distributed as dist

from mine.right import all_gather, reduce_scatter
from mine import right


def all_reduce(tensor):
    while dist.get_world_size() == 4:
        time.sleep(0.1)
    right.all_reduce(tensor)
"""


@pytest.mark.parametrize(
    ("text", "diagnosis"),
    [
        ("def all_reduce(:\n", "^in ring.py, line 1: SyntaxError: invalid syntax.$"),
        ("import nowhere\n", r"No module named 'nowhere' \(ring.py, line 1, in <module>\)"),
        (TYPO, r"name 'dits' is not defined; in case .* \(ring.py, line 5, in all_reduce\)"),
        ("import os\n\nos._exit(3)\n", "left with exit code 3"),
        (SPINS, r"did not end within 5 s.*\(ring.py, line \d, in <module>\)"),
        (ON_FOUR, r"On 4 real processes .*\(ring.py, line \d+, in all_reduce\)"),
        (
            "from from_scratch.ring import *\n",
            "mine/ring.py imports from_scratch, which is the sol",
        ),
    ],
    ids=["syntax", "import", "name", "exit", "hang", "hang on four", "the solution"],
)
def test_a_slip_is_named_with_its_place(
    text: str, diagnosis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ring=text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(submission, "TIMEOUT", 5 if text is SPINS else 15)
    says(diagnosis, report.grade("ring"))


def test_a_helper_that_is_still_a_stub_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesson = (LESSON / "ddp.py").read_text().replace("from_scratch", "mine")
    start = lesson.index("def in_buckets(")
    body = lesson.index("    ", lesson.index('"""\n', lesson.index('"""', start) + 3))
    write(tmp_path, ddp=lesson[:body] + "    raise NotImplementedError\n" + lesson[body:])
    monkeypatch.syspath_prepend(tmp_path)
    verdict = report.grade("DDP, bucketed")
    assert verdict.status == "not yet"
    line = lesson[:body].count("\n") + 1
    assert verdict.text == f"in mine/ddp.py, line {line}, in_buckets is still to be written."


@pytest.mark.parametrize("name", PATCHES)
def test_a_file_that_changes_its_grader_or_the_clock_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ddp=f"{PATCHES[name]}\n\nclass FlatDDP:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    says(f"replaces {name}", report.grade("DDP, flat"))


def graded(folder: Path, *only: str) -> tuple[int, list[str], str]:
    """Exit status, lines and errors of the command."""
    done = subprocess.run(
        [sys.executable, "-m", "course.project", "mine", *only],
        env={"PYTHONPATH": f"{folder}:{LESSON.parent}", "PATH": "", "TQDM_DISABLE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_a_broken_file_costs_its_own_milestones(tmp_path: Path) -> None:
    lesson = (LESSON / "zero3.py").read_text().replace("from_scratch", "mine")
    write(tmp_path, ring="def all_reduce(:\n", ddp=lesson + "\n\nclass FlatDDP(", zero3=lesson)
    status, lines, error = graded(tmp_path)
    assert (status, error) == (1, "")
    names = tuple(f"{name}: " for name in report.TARGETS)
    verdicts = [line for line in lines if line.startswith(names)]
    assert len(verdicts) == 16
    assert "SyntaxError" in verdicts[0]
    assert all("SyntaxError" in line for line in verdicts[1:5])
    assert verdicts[5] == "ZeRO-1: Not yet. There is no ZeRO1 in mine/zero.py."
    assert lines[-1].startswith("0 of 16. Next: ring. In mine/ring.py mend all_reduce, ")


def test_one_file_is_graded_alone_and_the_status_says_how_it_went(tmp_path: Path) -> None:
    package = write(tmp_path)
    shutil.copy(package / "right.py", package / "ring.py")
    status, lines, _ = graded(tmp_path, "ring")
    assert status == 0
    assert lines[-1] == (
        "1 of 1. All that was graded is right. Next: DDP, per parameter. In mine/ddp.py write "
        "PerParameterDDP; then run `make grade ONLY=ddp`."
    )
    status, lines, error = graded(tmp_path, "rign")
    assert (status, lines) == (2, [])
    known = (
        "ring, ddp, zero, zero3, fsdp, pipeline, tensor, context, expert, local_sgd, checks, DDP,"
    )
    assert f"there is no milestone 'rign'; there are {known}" in error


def optimizer_guarded() -> str:
    """The first of its class, whose `step` torch wraps then."""
    weights = [nn.Parameter(torch.ones(3))]
    return guarded(lambda: type(minidist.ZeroOptimizer(weights, SGD)).__name__)


def test_the_first_optimizer_of_a_class_replaces_nothing() -> None:
    assert launch(optimizer_guarded, 1, device="cpu") == ["ZeroOptimizer"]
