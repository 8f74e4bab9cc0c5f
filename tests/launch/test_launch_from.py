"""launch from where readers call it: a script, and the cells of a notebook."""

import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
from nbclient import NotebookClient

from minidist import launch
from tests.support.processes import living, noted, wait_until

ROOT = Path(__file__).parents[2]

# No `if __name__ == "__main__":` on purpose.
SCRIPT = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
import torch.distributed as dist
from minidist import RankError, launch
from tests.support.processes import note

folder, way = sys.argv[1:]
print("the script runs", flush=True)
TEN = 10

class OwnError(Exception):
    pass

def scaled(x):
    return TEN * x + dist.get_rank()

def fails():
    if dist.get_rank() == 1:
        raise OwnError("of the script")

def hangs():
    note(folder, os.getpid())
    time.sleep(1000)

if way == "at the start":
    try:
        launch(hangs, 1)
    except KeyboardInterrupt as error:
        kept = error  # as a notebook keeps it
    print("interrupted, then", launch(scaled, 2, 3), flush=True)
    time.sleep(1000)

print(launch(scaled, 2, 3))
try:
    launch(fails, 2)
except RankError as error:
    print(error.rank, type(error.__cause__) is OwnError)
launch(hangs, 2, timeout=100)
"""

Run = Callable[[str], tuple[subprocess.Popen[str], Path]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Start the script; give it and the folder in which its ranks note that they run."""
    started = []

    def start(way: str) -> tuple[subprocess.Popen[str], Path]:
        script = tmp_path_factory.mktemp("script") / "script.py"
        script.write_text(SCRIPT)
        folder = tmp_path_factory.mktemp("ranks")
        command = [sys.executable, str(script), str(folder), way]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
        return started[-1], folder

    yield start
    for process in started:
        process.kill()
        process.communicate()


def commands(pid: int) -> list[list[str]]:
    return [child.cmdline() for child in psutil.Process(pid).children()]


def descendants(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def test_a_script_needs_no_guard_and_ctrl_c_ends_its_ranks(run: Run) -> None:
    process, folder = run("in Python")
    assert wait_until(lambda: len(noted(folder)) == 2)
    family = descendants(process.pid)
    assert noted(folder) < family
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["the script runs", "[30, 31]", "1 True"]
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert living(family) == set()


def test_ctrl_c_while_the_first_rank_is_starting_ends_it_too(run: Run) -> None:
    process, folder = run("at the start")
    assert wait_until(lambda: any("forkserver" in " ".join(c) for c in commands(process.pid)))
    os.killpg(process.pid, signal.SIGINT)  # the whole group, as a terminal does: the server too
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(2)]
    assert lines == ["the script runs\n", "interrupted, then [30, 31]\n"]
    assert wait_until(lambda: len(descendants(process.pid)) == 2), f"ranks: {noted(folder)}"


SETUP = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
import psutil
import torch.distributed as dist
from minidist import launch
from tests.support.processes import note, noted, wait_until

class CellError(Exception):
    pass

def scaled(x):
    print("scaling")
    return x * dist.get_rank()
"""
FAILS = """
def fails():
    if dist.get_rank() == 2:
        raise CellError("of the cell")  # this very line
    dist.barrier()

launch(fails, 3)
"""
HANGS = """
def hangs():
    note({folder!r}, os.getpid())
    time.sleep(1000)

def press_stop():
    wait_until(lambda: len(noted(Path({folder!r}))) == 2)
    os.killpg(os.getpid(), signal.SIGINT)  # the whole group, as Jupyter does

threading.Thread(target=press_stop).start()
launch(hangs, 2, timeout=1000)
"""
AFTER = "print([child.name() for child in psutil.Process().children()])"


def test_cells_of_a_notebook_launch_fail_and_are_interrupted(tmp_path: Path) -> None:
    sources = [
        SETUP.format(root=str(ROOT)),
        "launch(scaled, 2, 5)",
        "launch(scaled, 3, 7)",
        FAILS,
        HANGS.format(folder=str(tmp_path)),
        AFTER,
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        kernel_name="python3",
        allow_errors=True,
        timeout=120,
    )
    with client.setup_kernel():
        for index, cell in enumerate(cells):
            client.execute_cell(cell, index)
        family = descendants(client.km.provisioner.process.pid)
    assert living(family | noted(tmp_path)) == set()

    setup, two, three, fails, hangs, after = (cell.outputs for cell in cells)
    assert setup == []
    assert [output.get("text") for output in two] == ["[rank 0] scaling\n[rank 1] scaling\n", None]
    assert [each[-1].data["text/plain"] for each in (two, three)] == ["[0, 5]", "[0, 7, 14]"]
    assert fails[-1].ename == "RankError"
    assert fails[-1].evalue.startswith("rank 2 raised CellError: of the cell")
    assert 'raise CellError("of the cell")  # this very line' in fails[-1].evalue
    traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(fails[-1].traceback))
    assert "CellError: of the cell\n\nThe above exception was the direct cause" in traceback
    assert len(noted(tmp_path)) == 2
    assert hangs[-1].ename == "KeyboardInterrupt"
    assert after[-1].text == "['python', 'python']\n", "the fork server and its tracker alone"


def test_a_function_may_name_a_module_of_a_class_of_its_own() -> None:
    assert type(sys.modules["torch.backends.mkldnn"]) is not types.ModuleType
    assert launch(lambda: torch.backends.mkldnn.__name__, 1) == ["torch.backends.mkldnn"]
