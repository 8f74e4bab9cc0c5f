"""The capstone's grader: a run's log against one process, the budget, and the forecast."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from course.capstone import task
from course.capstone.run import METERED, Line
from course.verdict import Grader, Wrong, number

__all__ = ["capstone", "measured", "read"]

CHECKED = 3  # steps that one process makes too
SAME = 1e-3  # relative: what the order of sums may change in a loss
WITHIN = {"held": 0.1, "sent": 0.03, "seconds": 0.1}  # of what was measured
WRITTEN = "Logs are written by `python -m course.capstone`"


@Grader
def capstone(log: str | Path, forecast: Mapping[str, Any]) -> str:
    """Grade a run by its log, and what was forecast of it.

    Args:
        log: the file that `python -m course.capstone` has written.
        forecast: "held" and "sent", bytes of the rank that holds or sends most; "seconds" of a step
            on the cluster's clock.
    """
    expected = {name: _forecast(name, forecast) for name in WITHIN}
    run = read(log)
    _check_rows(run)
    _check_losses(run)
    _check_plausible(run)
    found = measured(run)
    loss = _check_budget(run, found)
    for name, got in found.items():
        _check_forecast(name, expected[name], got)
    off = {name: abs(expected[name] / got - 1) for name, got in found.items()}
    budget = task.BUDGET
    return (
        f"{len(run)} steps to a loss of {loss:.2f}, with {_mb(found['held'])} of "
        f"{_mb(budget.held)} on a rank and {total(run):.2f} of {budget.seconds:g} s. Your forecast "
        f"is off by {off['held']:.0%} in memory, {off['sent']:.0%} in bytes sent and "
        f"{off['seconds']:.0%} in time. Each rank read rows of its own in every step, and the "
        f"first {CHECKED} losses are those of one process with the whole batch."
    )


# ---- read ----


def _forecast(name: str, forecast: Mapping[str, Any]) -> float:
    """One of its numbers."""
    if name not in forecast:
        raise Wrong(f"The forecast has no {name!r}: it is a dict of {', '.join(WITHIN)}.")
    if (value := forecast[name]) is None:
        raise NotImplementedError("First write your forecast.")
    try:
        return number(value)
    except TypeError as error:
        raise Wrong(f"forecast[{name!r}]: expected a number, got {value!r:.80}.") from error


def read(log: str | Path) -> list[Line]:
    """The steps of a log; each has what its ranks have told."""
    log = Path(log)
    if not log.exists():
        raise NotImplementedError(f"There is no {log.name} yet: run it.")
    lines = []
    for place, text in enumerate(log.read_text().splitlines(), 1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            raise Wrong(f"Line {place} of {log.name} is not JSON. {WRITTEN}.") from error
    try:
        head, *steps = lines
        ranks, count = head["ranks"], head["steps"]
        numbers = [line["step"] for line in steps]
        told = {len(line[key]) for line in steps for key in ("loss", "sent", "read")}
        told |= {len(line["held"]) for line in steps if line["step"] == METERED}
        [line["seconds"] for line in steps]
    except (KeyError, TypeError, ValueError) as error:
        raise Wrong(f"{log.name} lacks {error}. {WRITTEN}.") from error
    if ranks != task.RANKS or told - {task.RANKS}:
        raise Wrong(
            f"{ranks} ranks made this run; the cluster has {task.RANKS}, and all take part."
        )
    if numbers != [*range(count)]:
        raise Wrong(f"The log has {len(numbers)} steps of {count}, from 0 on without a gap.")
    if count < task.WINDOW:
        raise Wrong(f"{count} steps are too few: the loss is the mean of the last {task.WINDOW}.")
    return steps


def measured(run: list[Line]) -> dict[str, float]:
    """What a log says of each number of a forecast."""
    later = run[METERED:]  # in the first steps wrappers learn in which order layers run
    return {
        "held": max(run[METERED]["held"]),
        "sent": max(max(line["sent"]) for line in later),
        "seconds": sum(line["seconds"] for line in later) / len(later),
    }


def total(run: list[Line]) -> float:
    """Seconds of a run on the cluster's clock."""
    seconds: float = sum(line["seconds"] for line in run)
    return seconds


# ---- is it a training run of this model, on all ranks? ----


def _check_rows(run: list[Line]) -> None:
    """All rows of each step were read once, as many by each rank."""
    for line in run:
        read_by = [(row, rank) for rank, rows in enumerate(line["read"]) for row in rows]
        readers = [[rank for at, rank in read_by if at == row] for row in range(task.ROWS)]
        twice = next((row for row, ranks in enumerate(readers) if len(ranks) > 1), None)
        unread = next((row for row, ranks in enumerate(readers) if not ranks), None)
        where = f"In step {line['step']}"
        if twice is not None:
            by = " and ".join(map(str, readers[twice]))
            raise Wrong(
                f"{where} row {twice} is read more than once, by ranks {by}"
                + ("." if unread is None else f", and row {unread} by nobody.")
                + " How many parts does a step's batch have?"
            )
        if unread is not None or len({*map(len, line["read"])}) > 1:
            counts = ", ".join(str(len(read)) for read in line["read"])
            raise Wrong(f"{where} the ranks read {counts} of the {task.ROWS} rows.")


def _check_losses(run: list[Line]) -> None:
    """The first losses are those of one process."""
    rows, first = task.rows(0, 0, 1), run[0]
    net = task.model()
    for rank, (loss, read) in enumerate(zip(first["loss"], first["read"], strict=True)):
        with torch.no_grad():
            right = task.loss_of(net, rows[read]).item()
        if not math.isclose(loss, right, rel_tol=SAME):
            raise Wrong(
                f"In step 0 rank {rank} has a loss of {loss:.4f}; with the first weights the rows "
                f"that it read have {right:.4f}."
            )
    for line, right in zip(run, task.alone(CHECKED), strict=False):
        mean = sum(line["loss"]) / task.RANKS
        if not math.isclose(mean, right, rel_tol=SAME):
            raise Wrong(
                f"In step {line['step']} the mean loss is {mean:.4f}; one process with the whole "
                f"batch has {right:.4f}. Step 0 is right, so it is the update: is each gradient "
                "the mean over all four ranks, and the optimizer AdamW with the given rate?"
            )


def _check_plausible(run: list[Line]) -> None:
    """What was counted is no less than the task takes."""
    model = 4 * task.sizes().parameters
    least = 2 * (task.RANKS - 1) * model
    if (sent := min(sum(line["sent"]) for line in run)) < 0.99 * least:
        raise Wrong(
            f"The losses are right, but only {_mb(sent)} a step went through the cluster's comms. "
            f"To sum the gradients all ranks together send {_mb(least)} at least: talk through "
            "`cluster.world`, `cluster.node` and `cluster.across` alone."
        )
    forward = task.sizes().operations * task.ROWS / task.RANKS / task.MACHINE.flops
    seconds = min(line["seconds"] for line in run)
    if seconds < 0.99 * 3 * forward:
        raise Wrong(
            f"A step takes {seconds:.3f} s on the clock, and its computing alone {3 * forward:.3f} "
            "s: train the `net` that you are given, whose layers tell the clock."
        )


# ---- the budget, and the forecast ----


def _check_budget(run: list[Line], found: Mapping[str, float]) -> float:
    """The loss that was reached, if the budget is kept."""
    budget, seconds = task.BUDGET, total(run)
    if found["held"] > budget.held:
        raise Wrong(
            f"It trains, but a rank holds {_mb(found['held'])} at the peak of a step, and has "
            f"{_mb(budget.held)}. What does every rank hold in full, and when?"
        )
    loss = sum(sum(line["loss"]) for line in run[-task.WINDOW :]) / task.WINDOW / task.RANKS
    if not loss <= budget.loss:
        raise Wrong(
            f"After {len(run)} steps the mean loss of the last {task.WINDOW} is {loss:.2f}, and "
            f"{budget.loss:g} is asked for. One process can find out how many steps that takes."
        )
    if seconds > budget.seconds:
        raise Wrong(
            f"It reaches {loss:.2f}, but its {len(run)} steps of {found['seconds']:.3f} s take "
            f"{seconds:.2f} s, and the budget is {budget.seconds:g}. How many bytes cross the slow "
            "links in a step, and what could be computed meanwhile?"
        )
    return loss


def _check_forecast(name: str, expected: float, got: float) -> None:
    """The forecast of a number is as close as it should be."""
    if abs(expected / got - 1) <= WITHIN[name]:
        return
    told = {"held": "A rank holds", "sent": "A rank sends", "seconds": "A step takes"}[name]
    shown = "{:.3g} s" if name == "seconds" else "{:,.0f} bytes"
    slips = {
        1 / 4: "Four bytes make a number in fp32.",
        4: "That is what all ranks have together; forecast one.",
        1e3: "Seconds are asked for, not milliseconds.",
        1e-6: "Bytes are asked for, not megabytes.",
    }
    close = (text for factor, text in slips.items() if abs(expected / got / factor - 1) <= 0.15)
    raise Wrong(
        f"The run keeps within the budget. {told} {shown.format(got)}, and you forecast "
        f"{shown.format(expected)}: more than {WITHIN[name]:.0%} off. {next(close, '')}".rstrip()
    )


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"
