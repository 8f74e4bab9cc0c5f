"""Rank 0's report of a run: the log, the plot, and a last line."""

import json
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

import torch.distributed as dist

from minidist.train.loop import Record
from minidist.train.options import LOG, raise_on_all

PICTURES = (".png", ".pdf", ".svg")


class Report:
    """Written by rank 0; all ranks make one.

    Args:
        log: a file to which a line of JSON is added for each step. A resumed run keeps what it had
            of earlier steps, and does not repeat those that are made again.
        plot: a picture of the run, by its ending a PNG, PDF or SVG.
        first: the step at which the run begins.

    Raises TrainError on all ranks if a file cannot be written: now, or, when the run has trained
    and saved to its end, from `close`.
    """

    def __init__(self, log: Path | None, plot: Path | None, first: int) -> None:
        self.plot, self.records, problem = plot, list[Record](), ""
        self._problem = ""  # that came up since
        self._file: TextIOWrapper | None = None
        if dist.get_rank() == 0:
            try:
                for flag, path in (("--log-file", log), ("--plot", plot)):
                    if path and path.exists() and not path.is_file():
                        problem = f"{flag}: expected a regular file, got {path}"
                if log and not problem:
                    self.records, kept = earlier(log, first)
                    self._file = log.open("a", buffering=1)
                    self._file.truncate(len(kept))
                    self._file.write("" if kept.endswith(b"\n") or not kept else "\n")
                if plot and plot.suffix in PICTURES and not problem:
                    plot.open("ab").close()
            except OSError as error:
                problem = f"cannot write the log or the plot: {error}"
        if plot and plot.suffix not in PICTURES:
            problem = f"--plot: expected a file ending {' or '.join(PICTURES)}, got {plot}"
        raise_on_all(problem)

    def add(self, record: Record) -> None:
        if dist.get_rank() == 0:
            self.records.append(record)
        if self._file and not self._problem:
            try:
                self._file.write(json.dumps(record) + "\n")
            except OSError as error:
                self._problem = f"cannot write the log: {error}"
                LOG.warning(f"{self._problem}; training goes on without it")

    def close(self) -> None:
        """Draw the plot, and say how the run went."""
        if self._file:
            with suppress(OSError):  # which has been told
                self._file.close()
        if dist.get_rank() == 0 and self.records:
            if self.plot:
                self._draw(self.plot)
            start, end = self.records[0], self.records[-1]
            loss = f"loss {start['loss']:.3f} at step {start['step']}"
            print(f"{loss}, {end['loss']:.3f} at {end['step']}")
        raise_on_all(self._problem)

    def _draw(self, plot: Path) -> None:
        from minidist.plots.training import training  # slow to import

        try:
            training(self.records).savefig(plot)
        except OSError as error:
            self._problem = f"cannot write the plot: {error}"


def earlier(log: Path, first: int) -> tuple[list[Record], bytes]:
    """The records of the run that goes on at `first`, and what is kept of the file.

    What goes are the steps that are made again, and half a line of a rank that was killed. A run
    that begins at step 0, or whose earlier steps are not there, is added to all that is.
    """
    text = log.read_bytes() if log.exists() else b""
    torn = text[text.rfind(b"\n") + 1 :]
    place, kept = 0, len(text) - len(torn) * torn.startswith(b'{"step"')
    run, records = list[Record](), list[Record]()
    for line in text[:kept].splitlines(keepends=True):
        place += len(line)
        try:
            record = json.loads(line)
            run = [record] if record["step"] == 0 else run
            if record["step"] > 0:
                run.append(record)
            if record["step"] == first - 1:
                records, kept = run.copy(), place
        except (ValueError, TypeError, KeyError):
            continue  # something else that is in the file
    return records, text[:kept]
