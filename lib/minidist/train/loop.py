"""The training loop, the same for every strategy: rows, backward passes, clipping, a step."""

# mypy: disable-error-code=no-untyped-call
# (torch does not type `backward`)

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from minidist.launch.device import device
from minidist.train.gpt import GPT
from minidist.train.options import Options, TrainError, check, compare
from minidist.train.strategies import WRAP
from minidist.train.text import characters, rows_of, seed_of, text

Record = dict[str, Any]


class Training:
    """A run on all ranks of the default group: iterate over it, and each step yields its record.

    A record, alike on all ranks, has the `step` (the first is 0), the mean `loss` over its rows,
    `tokens_per_second`, `bytes_sent` by the rank that sent most (None if PyTorch's backend sent
    them, which does not tell), and the `peak_memory` of the rank that held most: what torch has
    allocated on a GPU, what the process had resident on a CPU (None if that is not Linux).

    With `options.checkpoint` it begins where the newest checkpoint ends, and makes more. If a rank
    has set `stopping`, all of them save after the same step, and the run ends.

    Raises TrainError for options that do not fit each other or the number of ranks, and on all
    ranks for checkpoints that can be neither read nor written.
    """

    def __init__(self, options: Options) -> None:
        self.options, self.device = options, device()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        compare(options)
        check(options, self.ranks)
        self.ids, alphabet = characters(text())
        torch.manual_seed(options.seed)
        net = GPT(len(alphabet), options.width, options.layers, options.heads, options.context)
        self.wrapped = WRAP[options.strategy](net.to(self.device), options, self.device)
        self.first = self.done = 0  # the step with which this run begins; steps that are made
        self.stopping = False  # set on any rank, it ends the run after the step under way
        self.checkpoints = None
        if options.checkpoint:
            from minidist.train.checkpoint import Checkpoints  # slow to import

            self.checkpoints = Checkpoints(options)
            self.checkpoints.load(self.wrapped)
            self.first = self.done = self.checkpoints.newest

    def __iter__(self) -> Iterator[Record]:
        try:
            yield from self._records()
        finally:
            if self.checkpoints:
                self.checkpoints.close()

    def _records(self) -> Iterator[Record]:
        options = self.options
        if self.first < options.steps:
            self.rehearse()
        for step in range(self.first, options.steps):
            began = time.perf_counter()
            reset_peak(self.device)
            for comm in self.wrapped.comms:
                comm.clear()
            loss = self.step(step)
            sent = sum(comm.bytes_sent for comm in self.wrapped.comms)
            losses, sents, peaks, stops = gather([loss, sent, peak(self.device), self.stopping])
            seconds = time.perf_counter() - began
            mean = sum(losses) / self.ranks
            if not math.isfinite(mean):
                raise TrainError(f"the loss of step {step} is {mean}; try a smaller --lr")
            yield {
                "step": step,
                "loss": mean,
                "tokens_per_second": options.batch * options.context / seconds,
                "bytes_sent": int(max(sents)) if self.wrapped.comms or self.ranks == 1 else None,
                "peak_memory": int(max(peaks)) or None,
            }
            self.done = step + 1
            last = any(stops) or self.done == options.steps
            if self.checkpoints and (last or self.done % options.every == 0):
                self.checkpoints.save(self.done, self.wrapped)
            if last:
                break
        if self.checkpoints:
            self.checkpoints.wait()

    def step(self, step: int) -> float:
        """Make one step; return the mean loss of this rank's rows."""
        options, wrapped = self.options, self.wrapped
        # Random numbers too depend on the step alone: a run that goes on from here draws the same.
        torch.manual_seed(seed_of(options.seed, step, self.rank))
        total = torch.zeros((), device=self.device)
        for number, rows in enumerate(self.rows(step).chunk(options.accumulate), start=1):
            last = number == options.accumulate
            with nullcontext() if last else wrapped.accumulating():
                loss = self.loss(rows) / options.accumulate
                loss.backward()
            total += loss.detach()
        if options.clip:
            wrapped.clip(wrapped.model, options.clip)
        wrapped.optimizer.step()
        wrapped.optimizer.zero_grad()
        return total.item()

    def rows(self, step: int) -> torch.Tensor:
        """This rank's rows of a step, [rows, context + 1]."""
        options = self.options
        how = {"rows": options.batch, "context": options.context, "seed": options.seed}
        return rows_of(self.ids, step, **how, rank=self.rank, ranks=self.ranks).to(self.device)

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        low = self.options.precision == "bfloat16" and not self.wrapped.casts
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            scores = self.wrapped.model(rows[:, :-1]).flatten(0, 1)
        return cross_entropy(scores.float(), rows[:, 1:].flatten())

    def rehearse(self) -> None:
        """Run one backward pass and drop its gradients.

        DDP, ours and PyTorch's, lays out its buckets anew after its first backward, and with them
        the order in which a ring sums. So that a resumed run has the bits of one that was never
        stopped, both do that before their first step.
        """
        self.loss(self.rows(self.first)[:1]).backward()
        self.wrapped.optimizer.zero_grad()


# ---- what a step took ----


def gather(mine: list[float]) -> list[list[float]]:
    numbers = torch.tensor(mine, dtype=torch.float64)
    everyone = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, numbers)
    return torch.stack(everyone, 1).tolist()


def reset_peak(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
    elif (forget := Path("/proc/self/clear_refs")).exists():
        forget.write_text("5")  # the peak becomes what is resident now


def peak(where: torch.device) -> int:
    """Return the most bytes since `reset_peak`; 0 where nobody knows."""
    if where.type == "cuda":
        return torch.cuda.max_memory_allocated(where)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
