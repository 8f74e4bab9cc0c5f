"""launch from where readers call it: the cells of a notebook."""

import re
from pathlib import Path

import nbformat
import psutil
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


def test_cells_of_a_notebook_launch_fail_and_are_interrupted(
    tmp_path: Path, temporary: Path
) -> None:
    sources = [
        SETUP.format(root=str(ROOT)),
        "launch(scaled, 2, 5)",
        FAILS,
        HANGS.format(folder=str(tmp_path)),
        AFTER,
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

    setup, two, fails, hangs, after = (cell.outputs for cell in cells)
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
        "Interrupted: where the ranks stood\n\nranks 0, 1:\n  Cell In[4], line 3"
    )
    assert len(shown.splitlines()) <= 15
    assert after[-1].text == "['python', 'python']\n", "the fork server and its tracker alone"
