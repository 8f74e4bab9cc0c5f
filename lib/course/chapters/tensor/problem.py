"""The worked problem of tensor parallelism: one sequence of the medium model, on 1 to 16 GPUs."""

from typing import Any

from course.pages.price import ask
from minidist.formulas.compute import rate
from minidist.planner.hardware import H100
from minidist.planner.jobs import MEDIUM
from minidist.planner.planner import ROOM

HEAD = "T", "peak, GB", "compute, ms", "collectives, ms", "share", "share, large model"


def degrees() -> list[list[Any]]:
    """What a GPU holds and how long it takes, with each degree; shares are of compute."""
    return [_row(ranks) for ranks in (1, 2, 4, 8, 16)]


def _row(ranks: int) -> list[Any]:
    how: dict[str, Any] = {"gpus": max(8, ranks), "tensor": ranks}
    medium, large = (
        [1e3 * ask(each, job, **how) for each in ("compute", "tensor")]
        for job in ("medium", "large")
    )
    peak = ask("peak", "medium", **how)
    fits = "" if peak < ROOM * H100.memory else "(no)\N{NO-BREAK SPACE}"
    shares = [f"{each[1] / each[0]:.0%}" for each in (medium, large)]
    return [ranks, f"{fits}{peak / 1e9:.0f}", *medium, *shares]


def per_byte() -> float:
    """Operations of the medium model's matrices while a GPU sends a byte over NVLink."""
    return rate(H100, MEDIUM.width) / H100.nvlink
