"""The worked problem of tensor parallelism: one sequence of the medium model, on 1 to 16 GPUs."""

from typing import Any

from course.pages.price import ask
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM

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
    peak = ask("peak", "medium", **how) / 1e9
    return [ranks, peak, *medium, *(f"{each[1] / each[0]:.0%}" for each in (medium, large))]


def widest(share: float = 0.1) -> dict[str, float]:
    """The degree at which messages take a share of the time of the matrices, at line rate."""
    found = {}
    for name, job in (("medium", MEDIUM), ("large", LARGE)):
        products = job.operations - job.attention - job.head
        per_second = 3 * products / ask("matrices", name)
        for link, rate in (("nvlink", H100.nvlink), ("network", H100.network)):
            found[f"{name}_{link}"] = 1 + 4.5 * share * job.width * rate / per_second
        found[f"{name}_per_byte"] = per_second / H100.nvlink
    return found
