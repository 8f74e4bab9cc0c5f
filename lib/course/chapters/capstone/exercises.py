"""The capstone's grader: a run's log against one process, the budget, the forecast, and a rerun.

No number that was measured is told before the forecast is judged.
"""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course.ask.line import answering
from course.ask.verdict import Grader, Wrong, draws, on_ranks
from course.chapters.capstone import task
from course.chapters.capstone.choice import grid as grid
from course.chapters.capstone.cluster import Keeper
from course.chapters.capstone.run import METERED, Line, digest_of, first_steps, forecast_of
from course.project.submission import file_of
from minidist.memory.state import FP32
from minidist.planner.planner import plan

SAME = 1e-3  # relative: other orders of sums change a loss by 5e-5 at most, to the last step
WITHIN = {"held": 0.1, "sent": 0.03, "seconds": 0.1}  # relative to what was measured
RERUN = {"sent": 0, "seconds": 1e-6, "held": 0.05, "read": 0}  # relative to the log
TOLD = {
    "held": ("A rank holds", "{:,.0f} bytes"),
    "sent": ("A rank sends", "{:,.0f} bytes"),
    "seconds": ("A step takes", "{:.3g} s"),
}
ROWS = range(task.ROWS)
PATIENCE = 60.0  # seconds for a rerun
Checks = Iterator[str | bool]  # sentences on what is wrong
WRITTEN = "Logs are written by `python -m course.chapters.capstone`"


@Grader
def capstone(module: str, log: str | Path | None = None) -> str:
    """Grade a run by its log, and what was forecast of it.

    Args:
        module: such as `mine.capstone`, whose run it is.
        log: what `python -m course.chapters.capstone` has written; None: beside the module's.
    """
    file = file_of(module)
    log = Path(log or file.with_suffix(".jsonl"))
    head, run = read(log)
    if head["digest"] != digest_of(file):
        raise Wrong(f"{log.name} is not of {file.name} as it is now: run that, and grade again.")
    forecast = forecast_of(head["forecast"])
    found, seed = measured(run), draws(83).randrange(1, 10**6)
    checks = chain(
        _check_rows(run),
        _check_losses(run),
        _check_cost(run, found["held"]),
        _check_forecast(forecast, found),
        _check_rerun(run, log, module, seed),
    )
    for wrong in filter(None, checks):
        raise Wrong(wrong)
    off = {name: abs(forecast[name] / got - 1) for name, got in found.items()}
    late = f" But in run {head['run']} it is no forecast any more." if head["run"] != 1 else ""
    return (
        f"{len(run)} steps with the losses of one process on the whole batch, down to "
        f"{sum(run[-1]['loss']) / task.RANKS:.2f}, with {_mb(found['held'])} of "
        f"{_mb(task.BUDGET.held)} on a rank and {total(run):.2f} of {task.BUDGET.seconds:g} s. Run "
        f"again from seed {seed}, {module} takes the same. Your forecast is off by "
        f"{off['held']:.0%} in memory, {off['sent']:.0%} in bytes sent and {off['seconds']:.0%} in "
        f"time.{late}"
    )


def read(log: Path) -> tuple[Line, list[Line]]:
    """The first line of a log, and its steps; each has what its ranks have told."""
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
        head = {key: head[key] for key in ("digest", "run", "forecast")}
        numbers = [line["step"] for line in steps]
        told = {len(line[key]) for line in steps for key in ("loss", "sent", "read")}
        told |= {len(line["held"]) for line in steps if line["step"] == METERED}
        [line["seconds"] for line in steps]
    except (KeyError, TypeError, ValueError) as error:
        raise Wrong(f"{log.name} lacks {error}. {WRITTEN}.") from error
    if told - {task.RANKS}:
        raise Wrong(f"The cluster has {task.RANKS} ranks, and all take part in every step.")
    if numbers != [*range(task.STEPS)]:
        raise Wrong(
            f"The log has {len(numbers)} steps; the job has {task.STEPS}, from 0 on without a gap."
        )
    return head, steps


def measured(run: list[Line]) -> dict[str, float]:
    """The measured value, from a log, of each number in a forecast."""
    later = run[METERED:]  # in the first steps wrappers learn in which order layers run
    return {
        "held": max(run[METERED]["held"]),
        "sent": max(max(line["sent"]) for line in later),
        "seconds": sum(line["seconds"] for line in later) / len(later),
    }


def total(run: list[Line]) -> float:
    """Seconds of a run on the cluster's clock."""
    return math.fsum(line["seconds"] for line in run)


# ---- is it a training run of this model, on all ranks? ----


def _check_rows(run: list[Line]) -> Checks:
    """All rows of each step were read once, as many by each rank."""
    for line in run:
        rows, where = list(enumerate(line["read"])), f"In step {line['step']}"
        readers = [[rank for rank, own in rows for at in own if at == row] for row in ROWS]
        unread = f", and row {readers.index([])} by nobody" if [] in readers else ""
        for row, by in enumerate(readers):
            yield len(by) > 1 and (
                f"{where} row {row} is read more than once, by ranks {' and '.join(map(str, by))}"
                f"{unread}. How many parts does a step's batch have?"
            )
        counts = [str(len(own)) for own in line["read"]]
        if unread or len({*counts}) > 1:
            yield f"{where} the ranks read {', '.join(counts)} of the {task.ROWS} rows."


def _check_losses(run: list[Line]) -> Checks:
    rows, net = task.rows(0, 0, 1), task.model()
    for rank, (loss, read) in enumerate(zip(run[0]["loss"], run[0]["read"], strict=True)):
        with torch.no_grad():
            right = task.loss_of(net, rows[read]).item()
        yield not math.isclose(loss, right, rel_tol=SAME) and (
            f"In step 0 rank {rank} has a loss of {loss:.4f}; with the first weights the rows that "
            f"it read have {right:.4f}."
        )
    for line, right in zip(run, task.alone(task.STEPS), strict=True):
        mean = sum(line["loss"]) / task.RANKS
        yield not math.isclose(mean, right, rel_tol=SAME) and (
            f"In step {line['step']} the mean loss is {mean:.4f}; one process with the whole batch "
            f"has {right:.4f}. All before is right, so it is the update: does each step have one, "
            "is each gradient the mean over all four ranks, and the optimizer AdamW with the given "
            "rate?"
        )


def _check_cost(run: list[Line], held: float) -> Checks:
    """Checks that what was counted is at least what the task takes, and within the budget."""
    how: dict[str, Any] = {"batch": task.ROWS // task.RANKS, "policy": FP32, "foreach": False}
    ddp = plan(task.sizes(), task.MACHINE, task.RANKS, **how).forecasts["ddp"]
    least, budget = task.RANKS * ddp.sent, task.BUDGET
    yield min(sum(line["sent"]) for line in run) < 0.99 * least and (
        f"The losses are right, but less than {_mb(least)} a step went through the cluster's "
        "comms, and all ranks together send that to sum the gradients: talk through "
        "`cluster.world`, `cluster.node` and `cluster.across` alone."
    )
    yield min(line["seconds"] for line in run) < 0.99 * ddp.compute and (
        f"A step takes less than its computing alone, {ddp.compute:.3f} s on the clock: train the "
        "`net` that you are given, whose layers tell the clock."
    )
    yield held > budget.held and (
        f"It trains, but a rank holds more than its {_mb(budget.held)} at the peak of a step. "
        "What does every rank hold in full, and when?"
    )
    yield total(run) > budget.seconds and (
        f"It trains, but its {len(run)} steps take more than the {budget.seconds:g} s of the "
        "budget. How many bytes cross the slow links in a step, and what could be computed "
        "meanwhile?"
    )


def _check_forecast(forecast: Mapping[str, float], found: Mapping[str, float]) -> Checks:
    slips = {
        1 / 4: "Four bytes make a number in fp32.",
        4: "That is what all ranks have together; forecast one.",
        1e3: "Seconds are asked for, not milliseconds.",
        1e-6: "Bytes are asked for, not megabytes.",
    }
    for name, (told, shown) in TOLD.items():
        expected, got = forecast[name], found[name]
        close = (text for factor, text in slips.items() if abs(expected / got / factor - 1) <= 0.15)
        wrong = (
            f"The run keeps within the budget. {told} {shown.format(got)}, and you forecast "
            f"{shown.format(expected)}: more than {WITHIN[name]:.0%} off. {next(close, '')}"
        )
        yield abs(expected / got - 1) > WITHIN[name] and wrong.rstrip()


def _check_rerun(run: list[Line], log: Path, module: str, seed: int) -> Checks:
    """The module trains from another seed, too, and takes in its first steps what the log says.

    Rows and clocks are this process's: a rank sees those rows alone that it reads.
    """
    steps = METERED + 2
    with answering(Keeper(seed).ask) as path:
        rerun = on_ranks(first_steps, task.RANKS, module, steps, path, timeout=PATIENCE)[0]
    for line, again, right in zip(run, rerun, task.alone(steps, seed), strict=False):
        for name, within in RERUN.items():
            yield not np.allclose(line[name] or 0, again[name] or 0, rtol=within, atol=0) and (
                f"Run again, {module} has another {name!r} in step {line['step']} than {log.name} "
                f"says. {WRITTEN}, and stay as they are."
            )
        mean = sum(again["loss"]) / task.RANKS
        yield not math.isclose(mean, right, rel_tol=SAME) and (
            f"Run again with weights and rows of seed {seed}, {module} has a mean loss of "
            f"{mean:.4f} in step {line['step']}; one process with the whole batch has {right:.4f}. "
            "Return the loss of the rows that the rank has read, and train on it."
        )


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"
