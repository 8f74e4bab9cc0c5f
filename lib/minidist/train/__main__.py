"""Train a small GPT on the English text of Python's manual, spread over the ranks as you choose.

    torchrun --nproc-per-node 4 -m minidist.train --strategy fsdp --log-file run.jsonl

Without torchrun it is one process. With the same seed all strategies have the same losses, on any
number of ranks, but for rounding.

With --checkpoint, SIGTERM or SIGUSR1 to torchrun or to any rank ends the run after the step under
way, with a checkpoint and exit status 143, and the same command goes on from there. torchrun kills
its ranks 30 s after a SIGTERM; it passes on SIGUSR1 if TORCHELASTIC_SIGNALS_TO_HANDLE names it.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from tqdm import tqdm  # type: ignore[import-untyped]

from minidist.launch.device import device as own_device
from minidist.launch.launch import LONGEST
from minidist.train.loop import Training
from minidist.train.options import LOG, Options, TrainError, check, path
from minidist.train.rendezvous import meet
from minidist.train.report import Report

# With 0 the other hosts' torchruns would wait 300 s for that of the host that is drained, and then
# call the job done. Kubernetes and Slurm know 128 + SIGTERM as a job to be started again.
STOPPED = 128 + signal.SIGTERM


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="python -m minidist.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for each in fields(Options):
        kind = each.metadata.get("type", type(each.default))
        default = "ddp; one process: single" if each.name == "strategy" else each.default
        shown = "" if default is None else f" (default: {default})"
        flags.add_argument(
            f"--{each.name}",
            type=kind,
            default=each.default,
            choices=each.metadata.get("choices"),
            metavar=None if "choices" in each.metadata else each.name.upper(),
            help=each.metadata["help"] + shown,
        )
    flags.set_defaults(strategy="ddp" if "RANK" in os.environ else "single")
    flags.add_argument(
        "--log-file",  # torchrun takes --log for its own --log-dir
        type=path,
        help="gets a line of JSON for each step: step, loss, tokens_per_second, bytes_sent (by the "
        "rank that sent most; null for PyTorch's strategies, whose backend does not tell), "
        "peak_memory (of the rank that held most: torch's on a GPU, else the process's)",
    )
    flags.add_argument("--plot", type=path, help="where a picture of the run goes")
    flags.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        help="seconds that a rank waits for the others (default: %(default)g)",
    )
    return flags


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


@contextmanager
def stopped_by_signals(training: Training) -> Iterator[None]:
    """Let a signal to any rank end the run with a checkpoint, if it makes any."""

    def stop(*_: object) -> None:
        training.stopping = True

    signals = (signal.SIGTERM, signal.SIGUSR1) if training.checkpoints else ()
    before = {each: signal.signal(each, stop) for each in signals}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def run(options: Options, args: argparse.Namespace) -> bool:
    """Make the run; return True if a signal ended it early."""
    with process_group(args.timeout):
        training = Training(options)
        first, says = training.first, dist.get_rank() == 0
        report = Report(args.log_file, args.plot, first)
        if first >= options.steps and says:
            LOG.info(f"nothing to do: --steps is {options.steps}, and the checkpoint has {first}")
        bar: Any = tqdm(
            training,
            desc=options.strategy,
            initial=first,
            total=options.steps,
            unit="step",
            disable=None if says else True,  # None: where it is no terminal
        )
        with stopped_by_signals(training):
            for record in bar:
                report.add(record)
                bar.set_postfix(loss=f"{record['loss']:.3f}", refresh=False)
            if (stopped := training.done < options.steps) and says:
                LOG.info(f"stopped by a signal after step {training.done - 1}, which is saved")
            report.close()  # of the others none leaves before, or torchrun would end them all
        del training, bar  # PyTorch's DDP must not outlive the group, or Gloo can deadlock at exit
    return stopped


def count_of(name: str) -> int:
    number = os.environ.get(name, "1")
    if not number.isdecimal() or int(number) < 1:
        raise TrainError(f"{name}: expected at least 1, got {number!r}")
    return int(number)


def main() -> None:
    args = parser().parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")
    LOG.setLevel(logging.INFO)
    options = Options(**{each.name: getattr(args, each.name) for each in fields(Options)})
    try:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // count_of("LOCAL_WORLD_SIZE")))
        if not 0 < args.timeout <= LONGEST:
            expected = f"from 0 to {LONGEST:g} seconds"
            raise TrainError(f"--timeout: expected {expected}, got {args.timeout}")
        check(options, count_of("WORLD_SIZE") if "RANK" in os.environ else 1)  # before any waits
        if run(options, args):
            sys.exit(STOPPED)
    except TrainError as error:
        sys.exit(f"minidist.train: {error}")


if __name__ == "__main__":
    main()
