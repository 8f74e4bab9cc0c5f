"""The last collectives of each rank, as a flight recorder has them, and the first that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.diagnose.verdict import Call, Rank
from minidist.plots import style
from minidist.plots.style import COLORS, GREY

WIDE = 1.0
DONE, WAITS = COLORS[5], COLORS[4]


def last_calls(ranks: Sequence[Rank], rows: int = 4) -> Figure:
    """A row for each of the last calls, a column for each rank.

    A filled cell is done, a dashed one is waited in, an empty place was never come to. A thick
    frame is around the first row in which the ranks differ.

    Args:
        ranks: as `minidist.diagnose.verdict.read` has them; of one group.
        rows: how many numbers to show, the last ones.
    """
    numbers = sorted({call.number for rank in ranks for call in rank.calls})[-rows:]
    size = 0.95 * len(ranks) + 0.5, 0.42 * len(numbers) + 0.4
    figure, grid = style.subplots(size=size)
    axes: Axes = grid[0, 0]
    for row, number in enumerate(numbers):
        calls = [_of_number(rank, number) for rank in ranks]
        for column, call in enumerate(calls):
            _cell(axes, column, row, call)
    first = next((row for row, n in enumerate(numbers) if _differs(ranks, n)), None)
    if first is not None:
        frame: dict[str, Any] = {"width": len(ranks) * WIDE, "height": 1.0, "linewidth": 2.2}
        style.outline(axes, 0, first, COLORS[1], **frame)
    axes.set_xticks([n + 0.5 for n in range(len(ranks))], [f"rank {each.rank}" for each in ranks])
    axes.xaxis.tick_top()
    axes.set_xlim(-0.03, len(ranks) * WIDE + 0.03)
    style.name_rows(axes, (f"#{number}" for number in numbers))
    style.table(axes)
    return figure


def _of_number(rank: Rank, number: int) -> Call | None:
    return next((call for call in rank.calls if call.number == number), None)


def _differs(ranks: Sequence[Rank], number: int) -> bool:
    calls = [_of_number(rank, number) for rank in ranks]
    return len({(call.name, call.tensor) if call else None for call in calls}) > 1


def _cell(axes: Axes, column: int, row: int, call: Call | None) -> None:
    place = {"width": 0.92 * WIDE, "height": 0.84}
    left, top = column * WIDE + 0.04, row + 0.08
    if call is None:
        return
    waits = call.state != "left"
    color = WAITS if waits else DONE
    style.outline(axes, left, top, GREY, linewidth=0.9, facecolor=(color, 0.35), **place)
    if waits:
        axes.patches[-1].set(linestyle="--")
    name = call.name.removeprefix("minidist.")
    style.write(axes, left + 0.46 * WIDE, row + 0.36, name)
    what = "waits" if waits else "done"
    shape = call.tensor.partition(" ")[2]
    style.write(axes, left + 0.46 * WIDE, row + 0.68, f"{shape} {what}".strip(), 8)
