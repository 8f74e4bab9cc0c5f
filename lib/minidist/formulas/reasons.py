"""Why a grid is as fast as it is: what binds it, and which degrees leave an NVLink domain."""

from __future__ import annotations

from minidist.formulas.grids import (
    MOST_BATCH,
    changed,
    named,
    orders,
    recomputed,
    rest,
    step_of,
    strategies,
)
from minidist.formulas.inputs import Grid
from minidist.formulas.memory import memory
from minidist.formulas.step import forecast

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from typing import Any

    from minidist.formulas.inputs import Question

WORTH = 0.99  # of a step's seconds, what a grid takes at most that is called faster
HOW = {"none": "nothing recomputed", "selective": "less recomputed"}


def binds(question: Question, grid: Grid, spent: dict[str, float]) -> dict[str, Any]:
    """What keeps a step in this grid from being faster, beside its compute.

    `part`: of `spent`, what takes longest. `needs` and `how`: if memory binds, the bytes of the
    fastest neighbor that does not fit, and how it differs; otherwise 0 and "".
    """
    found: dict[str, Any] = {"part": "update", "needs": 0.0, "how": ""}
    for name in spent:
        if name != "compute" and spent[name] > spent[found["part"]]:
            found["part"] = name
    takes = WORTH * sum([spent[part] for part in spent])
    for how, other in neighbors(question, grid):
        step = step_of(question, other)
        peak = memory(step, other.strategy)["peak"]
        if peak > question.limit:
            seconds = forecast(step, other.strategy)["overlapped"]
            if seconds < takes:
                takes, found["needs"], found["how"] = seconds, peak, how
    return found


def neighbors(question: Question, grid: Grid) -> list[list[Any]]:
    """Grids that hold more on each rank and split the model alike, each [how it differs, it]."""
    found: list[list[Any]] = []
    for name in strategies(question, step_of(question, grid)):
        if name != grid.strategy:
            found.append([name, named(grid, name)])
    for less in recomputed(question, grid.order):
        if less == grid.recompute:
            break
        found.append([HOW[less], changed(grid, grid.strategy, grid.batch, less)])
    way = [grid.data, grid.tensor, grid.pipeline, grid.context, grid.expert]
    batch = 2 * grid.batch
    if batch <= MOST_BATCH and rest(question.samples, grid.data * batch) == 0:
        for order, stages in orders(question, way, batch):
            if order == grid.order and stages == grid.interleaved:
                how = f"micro-batches of {batch}"
                found.append([how, changed(grid, grid.strategy, batch, grid.recompute)])
    return found


# ---- where its groups lie ----


def placed(grid: Grid, per_node: int) -> str:
    """A sentence on what stays inside an NVLink domain of so many GPUs, and what leaves it.

    Ranks of a tensor group are neighbors, then context, data and pipeline, or pipeline and data:
    see [Note: grids]. Experts are spread over ranks of data and context, the nearest first.
    """
    inside, across, group, widest = [], [], 1, 1
    near, far = 1, grid.pipeline
    if grid.nearer == "pipeline":
        near, far = grid.pipeline, 1
    for name, degree in (
        ("tensor", grid.tensor), ("pipeline", near), ("expert", grid.expert),
        ("context", grid.context), ("data", grid.data), ("pipeline", far),
    ):  # fmt: skip
        reach = group * degree
        if degree > 1 and reach <= per_node:
            inside.append(f"{name} {degree}")
            widest = max(widest, reach)
        elif degree > 1:
            across.append(name)
        if name != "expert":
            group = reach
    domain = f"an NVLink domain of {per_node} GPUs"
    if len(across) == 0:
        return f"All ranks share {domain}, and nothing crosses the network."
    leave = f"{in_sentence(across)} {'crosses' if len(across) == 1 else 'cross'} the network."
    if len(inside) == 0:
        return f"No group fits in {domain}: {leave}"
    verb = "fill" if widest == per_node else "stay inside"
    if len(inside) == 1:
        verb = "fills" if widest == per_node else "stays inside"
    names = in_sentence(inside)
    return f"{names[0].upper()}{names[1:]} {verb} {domain}; {leave}"


def in_sentence(names: list[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[: len(names) - 1])} and {names[len(names) - 1]}"
