"""A grid that somebody has chosen: what a step takes in it, or why there is no such grid."""

from __future__ import annotations

from collections.abc import Iterator

from minidist.formulas import grids
from minidist.formulas.inputs import ORDERS, Grid, Question
from minidist.formulas.models import experts_of
from minidist.planner.search import DEGREES, Found, priced
from minidist.schedule.checks import whole_number


def price(question: Question, grid: Grid) -> Found:
    """What a step takes in the grid, whether it fits or not.

    Raises ValueError or TypeError that names the grid's field.
    """
    check_grid(question, grid)
    return priced(question, grid)


def check_grid(question: Question, grid: Grid) -> None:
    """Raise ValueError or TypeError if these ranks, samples and this model have no such grid."""
    for name in (*DEGREES, "batch", "interleaved"):
        whole_number(name, getattr(grid, name), 1)
    for check in (_names, _ranks, _model, _order, _strategy):  # each relies on those before
        for refusal in check(question, grid):
            raise ValueError(refusal)


def _names(question: Question, grid: Grid) -> Iterator[str]:
    orders = ORDERS if grid.pipeline > 1 else ("1f1b",)
    way = [grid.data, grid.tensor, grid.pipeline, grid.context, grid.expert]
    nearer = grids.placings(question, way)
    for name, known in (
        ("order", orders), ("recompute", (*grids.KEPT,)), ("nearer", nearer),
    ):  # fmt: skip
        if (own := getattr(grid, name)) not in known:
            yield f"{name}: expected one of {', '.join(known)}, got {own!r}"


def _ranks(question: Question, grid: Grid) -> Iterator[str]:
    made = grid.data * grid.tensor * grid.pipeline * grid.context
    if made != question.ranks:
        yield (
            f"data * tensor * pipeline * context: expected {question.ranks:,}, which is all "
            f"ranks, got {made:,}"
        )
    if question.samples % (grid.data * grid.batch):
        yield (
            f"data * batch: expected a divisor of {question.samples:,} samples, "
            f"got {grid.data * grid.batch:,}"
        )
    if (grid.data * grid.context) % grid.expert:
        yield (
            f"expert: expected a divisor of data * context = {grid.data * grid.context:,}, "
            f"got {grid.expert}"
        )


def _model(question: Question, grid: Grid) -> Iterator[str]:
    sizes = question.sizes
    experts = experts_of(sizes)
    if sizes.width % grid.tensor:
        yield f"tensor: expected a divisor of the width {sizes.width:,}, got {grid.tensor}"
    if grid.pipeline > sizes.units:
        yield f"pipeline: expected at most {sizes.units} ranks, one a layer, got {grid.pipeline}"
    if grid.context > 1 and sizes.tokens % (2 * grid.context):
        yield (
            f"context: expected a number of which twice divides a sequence's {sizes.tokens:,} "
            f"tokens, got {grid.context}"
        )
    if experts % grid.expert:
        yield f"expert: expected a divisor of {experts} experts, got {grid.expert}"
    if grid.recompute == "selective" and not sizes.activations_selective:
        yield "recompute: expected none or full for a model that was counted, got 'selective'"


def _order(question: Question, grid: Grid) -> Iterator[str]:
    micro, ranks = grids.micro_batches(question, grid), grid.pipeline
    stages, blocks = ranks * grid.interleaved, question.sizes.units
    if grid.order != "1f1b" and grid.recompute == "full":
        yield f"recompute: expected none or selective with {grid.order}, got 'full'"
    if grid.order == "dualpipe" and micro < 2 * ranks:
        yield (
            f"order: expected 1f1b or zero_bubble with {micro} micro-batches, since dualpipe needs "
            f"two for each of {ranks} ranks"
        )
    if grid.interleaved > 1:
        if ranks == 1 or grid.order != "1f1b":
            yield f"interleaved: expected 1 without a pipeline in 1f1b, got {grid.interleaved}"
        if micro % ranks:
            yield (
                f"interleaved: expected 1, since {micro} micro-batches are no multiple of {ranks} "
                f"ranks, got {grid.interleaved}"
            )
        if blocks % stages and (blocks + 2) % stages:
            yield (
                f"interleaved: expected stages that divide {blocks} layers, or {blocks + 2} with "
                f"embedding and head, got {ranks} * {grid.interleaved}"
            )


def _strategy(question: Question, grid: Grid) -> Iterator[str]:
    known = grids.strategies(question, grids.step_of(question, grid))
    if known != ["single"]:
        known = [*dict.fromkeys([*known, "zero1"])]
    if grid.strategy not in known:
        yield f"strategy: expected one of {', '.join(known)} in this grid, got {grid.strategy!r}"
