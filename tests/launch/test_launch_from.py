"""launch from where readers call it: the cells of a notebook, and a script."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tests.support.processes import living, noted

ROOT = Path(__file__).parents[2]

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
def note_when_it_sleeps():
    main = threading.main_thread().ident
    wait_until(lambda: sys._current_frames()[main].f_code.co_name == "sleeps")
    note({folder!r}, os.getpid())

def sleeps():
    time.sleep(1000)

def hangs():
    threading.Thread(target=note_when_it_sleeps, daemon=True).start()
    sleeps()

def press_stop():
    wait_until(lambda: len(noted(Path({folder!r}))) == 2)
    os.killpg(os.getpid(), signal.SIGINT)  # the whole group, as Jupyter does

threading.Thread(target=press_stop).start()
launch(hangs, 2, timeout=1000)
"""
OWN = """
import enum, io, multiprocessing
from concurrent.futures import ProcessPoolExecutor
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from minidist import launch, map_reduce

class Color(enum.Enum):
    RED = 1

class Sample:
    def __init__(self, rank, color):
        self.rank, self.color = rank, color

class Samples(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return Sample(i, Color.RED)

class Net(torch.nn.Linear):
    pass

def doubled(x):
    return 2 * x

def in_pools(x, kinds=(None,)):
    values = []
    for kind in kinds:
        with ProcessPoolExecutor(1, multiprocessing.get_context(kind)) as pool:
            values += pool.map(doubled, [x])
    return values

def uses(kinds):
    gathered, file = [None] * 2, io.BytesIO()
    dist.all_gather_object(gathered, Sample(dist.get_rank(), Color.RED))
    torch.save(Net(1, 1), file)
    of_workers = list(DataLoader(Samples(), 1, collate_fn=lambda batch: batch[0], num_workers=2))
    ranks = [each.rank for each in gathered + of_workers if each.color is Color.RED]
    return ranks, in_pools(21, kinds), file.getvalue()
"""
USES = """
if __name__ == "__main__":
    for ranks, pooled, net in launch(uses, 2, {kinds}):
        print(ranks, pooled, type(torch.load(io.BytesIO(net), weights_only=False)) is Net)
    print(map_reduce([4], lambda x: [(0, in_pools(x)[0])], lambda key, values: values).whole)
"""
USED = 2 * "[0, 1, 0, 1] {0} True\n" + "{{0: [8]}}\n"
AFTER = "print([child.name() for child in psutil.Process().children()])"


@pytest.mark.parametrize(
    "how", ["import minidist", "import minidist.train.__main__", "import course.pages.price"]
)
def test_windows_is_told_where_it_runs(how: str) -> None:
    code = f"import sys; sys.platform = 'win32'; {how}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = ran.stderr.splitlines()[-1]
    assert said.startswith(
        "ImportError: minidist runs on Linux, on macOS, and on Windows inside WSL"
    )


def test_cells_of_a_notebook_launch_fail_and_are_interrupted(
    tmp_path: Path, temporary: Path
) -> None:
    sources = [
        SETUP.format(root=str(ROOT)),
        "launch(scaled, 2, 5)",
        FAILS,
        HANGS.format(folder=str(tmp_path)),
        AFTER,
        OWN + USES.format(kinds=[None]),
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        kernel_name="python3",
        allow_errors=True,
        timeout=600,
        config=Config(
            NotebookClient={"startup_timeout": 300, "iopub_timeout": 60},
            KernelManager={"transport": "ipc", "ip": str(temporary / "kernel")},
        ),
    )
    with client.setup_kernel():
        for index, cell in enumerate(cells):
            client.execute_cell(cell, index)
        kernel = psutil.Process(client.km.provisioner.process.pid)
        family = {child.pid for child in kernel.children(recursive=True)}
    assert living(family | noted(tmp_path)) == set()

    setup, two, fails, hangs, after, uses = (cell.outputs for cell in cells)
    assert setup == []
    assert [output.get("text") for output in two] == ["[rank 0] scaling\n[rank 1] scaling\n", None]
    assert two[-1].data["text/plain"] == "[0, 5]"
    assert fails[-1].ename == "RankError"
    assert fails[-1].evalue.startswith("rank 2 raised CellError: of the cell")
    assert 'raise CellError("of the cell")  # this very line' in fails[-1].evalue
    shown = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(fails[-1].traceback))
    assert shown.startswith(
        "RankError: rank 2 raised CellError: of the cell\n\n  Cell In[3], line 3"
    )
    assert len(shown.splitlines()) <= 15
    assert len(noted(tmp_path)) == 2
    assert hangs[-1].ename == "Interrupted"
    shown = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(hangs[-1].traceback))
    assert shown.startswith(
        "Interrupted: where the ranks stood\n\nranks 0, 1:\n  Cell In[4], line 11, in hangs\n"
    )
    assert len(shown.splitlines()) <= 15
    assert after[-1].text == "['python', 'python']\n", "the fork server and its tracker alone"
    assert "".join(output.get("text", "") for output in uses) == USED.format([42]), uses


def test_what_a_script_defines_can_be_pickled_in_a_rank_as_under_torchrun(tmp_path: Path) -> None:
    kinds = [None, "spawn", "forkserver"]
    (tmp_path / "script.py").write_text(OWN + USES.format(kinds=kinds))
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout == USED.format([42] * 3), done.stderr
    assert not done.stderr
