"""The commands of the page *The first ten minutes of a hang*, run on jobs that fail here."""

import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

import minidist
from course.chapters.disagree.torch_record import dump
from course.pages.path import ROOT

JOB = "4711"
KILLED = 7
TRAIN = """
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        raise OSError("cannot read shard 17")
    dist.all_reduce(torch.ones(2))

main()
"""


def command(word: str) -> str:
    """The page's one block of shell with this word."""
    page = (ROOT / "book" / "hang.md").read_text()
    blocks = re.findall(r"^`{3}bash\n(.*?)^`{3}", page, re.MULTILINE | re.DOTALL)
    (block,) = (each for each in blocks if word in each)
    return str(block)


def run(folder: Path, *words: str) -> tuple[str, str]:
    """Output and errors of a command in a job's folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    more = {"PATH": path, "PYTHONPATH": str(ROOT / "lib")}
    more |= dict.fromkeys(("logs", "calls"), f"logs/{JOB}")
    done = subprocess.run(
        words, cwd=folder, env=os.environ | more, capture_output=True, text=True, timeout=300
    )
    return done.stdout, done.stderr


def first_failures() -> str:
    """What the page's command finds after one of three ranks has raised, and the others in turn."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(TRAIN)
        meet = f"--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id {JOB}-0"
        flags = f"{meet} --nproc-per-node 3 --log-dir logs/{JOB} train.py"
        run(folder, sys.executable, "-m", "torch.distributed.run", *flags.split())
        return run(folder, "bash", "-c", command("error.json"))[0]


def _end_of_step(folder: str) -> None:
    x, rank = torch.ones(4), dist.get_rank()
    dist.all_reduce(x)
    if rank != KILLED:
        dist.barrier(async_op=True)
        time.sleep(0.5)  # a timeout
        Path(folder, f"calls_{rank}").write_bytes(pickle.dumps(dump()))
    time.sleep(1)  # none leaves before all have written


def last_collectives() -> tuple[str, str]:
    """What both readers of dumps say when one of twelve ranks was killed: ours, and torch's."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        dumps = folder / "logs" / JOB
        dumps.mkdir(parents=True)
        minidist.launch(_end_of_step, 12, str(dumps), device="cpu")
        ours, torchs = run(folder, "bash", "-c", command("torchfrtrace"))
        return ours.partition("\nwhere")[0], torchs.strip().splitlines()[-1]
