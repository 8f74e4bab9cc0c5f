"""Save tiny checkpoints until killed, again and again: python -m tests.train.killed FOLDER KILLS

Each process first loads the newest checkpoint, and makes sure that it is whole. It is forked, so
torch is imported once, and killed at a random moment while it saves the next ones. At the end the
newest step that each process found is printed, and how many had been killed during a save.
"""

import os
import random
import signal
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from minidist.train.checkpoint import Checkpoints
from minidist.train.options import Options
from minidist.train.strategies import Part

SIZE = 20_000


def save_for_ever(folder: Path, report: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    halves = len(list(folder.glob("*.unfinished")))
    weight = torch.full((SIZE,), 0.0)
    state: dict[Any, Any] = {weight: {key: weight.clone() for key in ("exp_avg", "exp_avg_sq")}}
    parts = {"weight": Part(weight, 0, weight.shape)}
    model: Any = SimpleNamespace(parts=lambda: parts, state=state, loaded=lambda: None)
    checkpoints = Checkpoints(Options(checkpoint=folder))
    assert not list(folder.glob("*.unfinished"))
    checkpoints.load(model)
    step = checkpoints.newest
    for each in (weight, state[weight]["exp_avg"], state[weight]["exp_avg_sq"]):
        assert bool((each == step).all()), f"step {step} is not whole: {each.unique()}"
    began = time.monotonic()
    for step in count(checkpoints.newest + 1):
        if step == checkpoints.newest + 2:
            checkpoints.wait()  # the first one is whole: from now on kills count
            took = time.monotonic() - began
            os.write(report, f"{checkpoints.newest} {halves} {took}\n".encode())
        for each in (weight, state[weight]["exp_avg"], state[weight]["exp_avg_sq"]):
            each.fill_(step)
        checkpoints.save(step, model)


def main() -> None:
    folder, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(0)
    for _ in range(kills + 1):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            save_for_ever(folder, writer)
        os.close(writer)
        newest, halves, took = os.read(reader, 100).split()
        print(int(newest), int(halves), flush=True)
        time.sleep(draw.uniform(0, 2 * float(took)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)


if __name__ == "__main__":
    main()
