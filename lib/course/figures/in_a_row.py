"""One collective after another: what every rank holds before, in between, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import RANK
from minidist.schedule.simulate import Contributors, Replay, State


def in_a_row(
    rows: Mapping[str, tuple[Replay, Replay]], names: Mapping[str, Sequence[str]]
) -> Figure:
    """Of each pair of collectives three grids: before, after the first, after the second.

    Rows of a grid are ranks, columns are chunks, as in `before_after`. What a rank still holds but
    was not promised is not shown.

    Args:
        rows: title → the replays of the first one and of both together.
        names: title → what the two are called.
    """
    figure, grid = style.subplots(len(rows), 3, size=(3.45, 1.35 * len(rows)))
    for line, (title, (first, both)) in zip(grid, rows.items(), strict=True):
        states = first.start, _promised(first), _promised(both)
        headings = title, *(f"→ {name}" for name in names[title])
        for axes, state, heading in zip(line, states, headings, strict=True):
            for rank, row in enumerate(state):
                for chunk, who in enumerate(row):
                    for i, contributor in enumerate(who):
                        color, width = RANK[contributor % 8], 1 / len(who)
                        style.fill(axes, chunk + i * width, rank, color, width=width)
                    style.outline(axes, chunk, rank)
                    style.write(axes, chunk + 0.5, rank + 0.54, _text(who, first.ranks))
            axes.set_title(heading, fontsize=8, loc="left")
            axes.set_xlim(-0.05, first.chunks + 0.05)
            axes.set_xticks([])
            style.name_rows(axes, (str(rank) for rank in range(first.ranks)))
            style.table(axes)
    return figure


def _promised(replay: Replay) -> State:
    """What the replay ends with, where its collective promises something."""
    pairs = zip(replay.state(), replay.goal, strict=True)
    return tuple(
        tuple(who if want else () for who, want in zip(*row, strict=True)) for row in pairs
    )


def _text(who: Contributors, ranks: int) -> str:
    return "Σ" if ranks > 1 and who == tuple(range(ranks)) else "+".join(map(str, who))
