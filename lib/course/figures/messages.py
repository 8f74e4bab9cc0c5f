"""Who sends to whom: ranks in a row, once for before and once for after each round of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.rounds import dot
from minidist.plots import style
from minidist.plots.style import RANK
from minidist.schedule.simulate import Replay

Round = Mapping[tuple[int, int], float]  # (from, to) -> share of the tensor
DOWN = 1.5  # from one row of ranks to the next
THICK = 3.4  # points, for a message that carries the whole tensor


def message_rounds(*replays: Replay) -> list[Round]:
    """What each of some schedules sends, all its steps together."""
    found = list[Round]()
    for replay in replays:
        sent: dict[tuple[int, int], float] = {}
        for event in replay.events:
            pair = event.src, event.dst
            sent[pair] = sent.get(pair, 0.0) + 1 / replay.chunks
        found.append(sent)
    return found


def messages(
    panels: Mapping[str, Sequence[Round]], ranks: int, names: Sequence[str] = ()
) -> Figure:
    """Panels side by side; in each a row of ranks, and another one after each round of messages.

    A message is a line in its sender's colour, as thick as its share of the tensor.

    Args:
        panels: title → rounds.
        ranks: how many there are.
        names: of the rounds, written to the left of the first panel.
    """
    most = max(len(each) for each in panels.values())
    size = min(7.2, 1.5 * len(panels) + (0.4 if names else 0)), 0.62 * most + 0.65
    figure, grid = style.subplots(1, len(panels), size=size)
    for axes, (title, each) in zip(grid[0], panels.items(), strict=True):
        for at, sent in enumerate(each):
            _round(axes, at * DOWN, sent, ranks)
        for row in range(len(each) + 1):
            for rank in range(ranks):
                dot(axes, rank, row * DOWN, rank)
        axes.set_title(title, fontsize=9)
        axes.set_xlim(-0.5, ranks - 0.5)
        axes.set_ylim(most * DOWN + 0.35, -0.35)
        axes.set_aspect("equal")
        axes.set_axis_off()
    for at, name in enumerate(names):
        y = (at + 0.5) * DOWN
        grid[0, 0].text(-0.6, y, name, ha="right", va="center", fontsize=9, fontweight="bold")
    return figure


def _round(axes: Axes, top: float, sent: Round, ranks: int) -> None:
    for (src, dst), share in sent.items():
        ends, heights = (src, dst), (top + 0.24, top + DOWN - 0.24)
        width = max(0.8, THICK * share)
        axes.plot(ends, heights, color=RANK[src % 8], linewidth=width, solid_capstyle="butt")
