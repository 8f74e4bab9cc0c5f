"""A mesh of ranks: nodes are rows; groups along rows and then along columns sum what they hold."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import GREY, RANK

Held = Sequence[Sequence[Sequence[int]]]  # of each node and each of its ranks, whose parts it has


def mesh_sums(states: Sequence[tuple[str, Held]]) -> Figure:
    """What each rank of a mesh holds, in panels; the groups that sum next are circled.

    Args:
        states: title → what each rank holds. The first panel circles rows, the second one columns.
    """
    figure, grid = style.subplots(1, len(states), size=(3.45, 1.65))
    for at, (axes, (title, held)) in enumerate(zip(grid[0], states, strict=True)):
        nodes, local = len(held), len(held[0])
        for node, row in enumerate(held):
            for place, who in enumerate(row):
                _cell(axes, place, node, who)
        for x, y, width, height in _groups(at, nodes, local):
            style.outline(axes, x, y, GREY, width=width, height=height, linewidth=1.2)
            axes.patches[-1].set(linestyle="--")
        axes.set_title(title, fontsize=8)
        axes.set_xlim(-0.2, local + 0.2)
        axes.set_ylim(nodes + 0.2, -0.2)
        axes.set_yticks([node + 0.5 for node in range(nodes)] if at == 0 else [])
        axes.set_yticklabels([f"node {node}" for node in range(nodes)] if at == 0 else [])
        axes.set_xticks([])
        style.table(axes)
    return figure


def _groups(at: int, nodes: int, local: int) -> list[tuple[float, float, float, float]]:
    if at == 0:
        return [(-0.08, node + 0.02, local + 0.16, 0.96) for node in range(nodes)]
    if at == 1:
        return [(place + 0.02, -0.08, 0.96, nodes + 0.16) for place in range(local)]
    return []


def _cell(axes: Axes, x: float, y: float, who: Sequence[int]) -> None:
    for i, contributor in enumerate(who):
        left, width = x + 0.1 + 0.8 * i / len(who), 0.8 / len(who)
        style.fill(axes, left, y + 0.12, RANK[contributor % 8], width=width, height=0.76)
    style.outline(axes, x + 0.1, y + 0.12, width=0.8, height=0.76)
    style.write(axes, x + 0.5, y + 0.52, "+".join(map(str, who)) if len(who) < 4 else "Σ")
