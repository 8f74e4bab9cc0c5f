"""What rank 0 reports of a run: the log, the plot, and a last line."""

import json
from io import TextIOWrapper
from pathlib import Path

import torch.distributed as dist

from minidist.train.loop import Record
from minidist.train.options import TrainError, agree

PICTURES = (".png", ".pdf", ".svg")


class Report:
    """Written by rank 0; all ranks make one.

    Args:
        log: a file with a line of JSON for each step. A resumed run keeps what it had of earlier
            steps, and does not repeat those that are made again.
        plot: a picture of the run, by its ending a PNG, PDF or SVG.
        first: the step at which the run begins.

    Raises TrainError on all ranks if a file cannot be written.
    """

    def __init__(self, log: Path | None, plot: Path | None, first: int) -> None:
        self.plot, self.records, problem = plot, list[Record](), ""
        self._file: TextIOWrapper | None = None
        if dist.get_rank() == 0:
            try:
                if log:
                    self.records = earlier(log, first)
                    aside = log.with_name(log.name + ".unfinished")
                    self._file = aside.open("w", buffering=1)
                    for record in self.records:
                        self._write(record)
                    aside.replace(log)  # and what follows is written there
                if plot and plot.suffix in PICTURES:
                    plot.open("ab").close()
            except OSError as error:
                problem = f"cannot write the log or the plot: {error}"
        if plot and plot.suffix not in PICTURES:
            problem = f"--plot: expected a file ending {' or '.join(PICTURES)}, got {plot}"
        agree(problem)

    def add(self, record: Record) -> None:
        """Note a step."""
        if dist.get_rank() == 0:
            self.records.append(record)
            self._write(record)

    def _write(self, record: Record) -> None:
        if self._file:
            try:
                self._file.write(json.dumps(record) + "\n")
            except OSError as error:
                raise TrainError(f"cannot write the log: {error}") from error

    def close(self) -> None:
        """Draw the plot, and say how the run went."""
        if self._file:
            self._file.close()
        if dist.get_rank() or not self.records:
            return
        if self.plot:
            from minidist.plots.training import training  # slow to import

            training(self.records).savefig(self.plot)
        start, end = self.records[0], self.records[-1]
        print(
            f"loss {start['loss']:.3f} at step {start['step']}, {end['loss']:.3f} at {end['step']}"
        )


def earlier(log: Path, first: int) -> list[Record]:
    """The records of a log of the steps before `first`; a rank that was killed may end it."""
    found: list[Record] = []
    for line in log.read_text().splitlines() if log.exists() and first else []:
        try:
            record = json.loads(line)
            if record["step"] < first:
                found.append(record)
        except (ValueError, TypeError, KeyError):
            continue
    return found
