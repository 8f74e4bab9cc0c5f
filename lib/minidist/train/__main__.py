"""Train a small GPT on the English text of Python's manual, spread over the ranks as you choose.

    torchrun --nproc-per-node 4 -m minidist.train --strategy fsdp --log-file run.jsonl

Without torchrun it is one process. With the same seed all strategies have the same losses, on any
number of ranks, but for rounding.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from tqdm import tqdm  # type: ignore[import-untyped]

from minidist.launch.launch import device as own_device
from minidist.train.loop import Training
from minidist.train.options import Options, TrainError
from minidist.train.rendezvous import meet
from minidist.train.report import Report

TIMEOUT = 300.0


def parser() -> argparse.ArgumentParser:
    """The flags: the options, and what is reported of the run."""
    made = argparse.ArgumentParser(
        prog="python -m minidist.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for each in fields(Options):
        kind = each.metadata.get("type", type(each.default))
        default = "ddp; one process: single" if each.name == "strategy" else each.default
        shown = "" if default is None else f" (default: {default})"
        made.add_argument(
            f"--{each.name}",
            type=kind,
            default=each.default,
            choices=each.metadata.get("choices"),
            metavar=None if "choices" in each.metadata else each.name.upper(),
            help=each.metadata["help"] + shown,
        )
    made.set_defaults(strategy="ddp" if "RANK" in os.environ else "single")
    made.add_argument(
        "--log-file",  # torchrun takes --log for its own --log-dir
        type=Path,
        help="a line of JSON for each step: step, loss, tokens_per_second, bytes_sent (by the rank "
        "that sent most; null for PyTorch's strategies, whose backend does not tell), peak_memory "
        "(of the rank that held most: torch's on a GPU, else the process's)",
    )
    made.add_argument("--plot", type=Path, help="where a picture of the run goes")
    made.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT,
        help=f"seconds that a rank waits for the others (default: {TIMEOUT:g})",
    )
    return made


@contextmanager
def process_group(timeout: float) -> Iterator[None]:
    """The default group, between all that torchrun has started, or of this process alone."""
    wait = timedelta(seconds=timeout)
    device = own_device()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    store, rank, ranks = meet(wait) if "RANK" in os.environ else (HashStore(), 0, 1)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=wait,
        device_id=device if on_gpu else None,  # NCCL connects now, and to this GPU
    )
    yield
    dist.destroy_process_group()


def run(args: argparse.Namespace) -> None:
    """Train, and report."""
    options = Options(**{each.name: getattr(args, each.name) for each in fields(Options)})
    with process_group(args.timeout):
        training = Training(options)
        report = Report(args.log_file, args.plot, training.first)
        bar: Any = tqdm(
            training,
            desc=options.strategy,
            initial=training.first,
            total=options.steps,
            unit="step",
            disable=None if dist.get_rank() == 0 else True,  # None: where it is no terminal
        )
        for record in bar:
            report.add(record)
            bar.set_postfix(loss=f"{record['loss']:.3f}", refresh=False)
        report.close()
        del training, bar  # PyTorch's DDP must not outlive the group, or Gloo can deadlock at exit


def main() -> None:
    """What runs on each rank."""
    args = parser().parse_args()
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks_here))
    try:
        run(args)
    except TrainError as error:
        sys.exit(f"minidist.train: {error}")


if __name__ == "__main__":
    main()
