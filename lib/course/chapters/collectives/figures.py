"""Pictures of collectives: what ranks hold before and after, and when the program waits."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.cells import Cell, cells, lanes, of_ranks, summed
from minidist.plots.style import COLORS, WORK
from minidist.schedule.replay import Contributors, Replay, State


def before_after(replays: Mapping[str, Replay]) -> Figure:
    """Every rank's input and output: two grids side by side for each name and replay.

    Rows are ranks, columns are chunks. A cell names the ranks whose parts are in it; a sum over all
    ranks is Σ. Blank is what a rank does not bring or is not promised. In an all-to-all a row has
    the N blocks of a rank, as `from→for`. What does not end as promised is outlined.
    """
    widths = [each.ranks if _blocks(each) else each.chunks for each in replays.values()]
    columns = max(4, *widths)  # or there is no room for the titles
    heights = [0.16 * each.ranks + 0.35 for each in replays.values()]
    size = 0.66 * columns + 0.66, sum(heights)
    figure, grid = style.subplots(len(replays), 2, size=size, height_ratios=heights)
    for (left, right), (name, each) in zip(grid, replays.items(), strict=True):
        brought = [[who or None for who in row] for row in each.start]
        _side(left, f"{name}: before", each, each.start, brought, columns)
        _side(right, "after", each, each.state(), each.goal, columns)
        right.tick_params(labelleft=False)
    return figure


def _side(
    axes: Axes,
    title: str,
    replay: Replay,
    held: State,
    wanted_of: Sequence[Sequence[Contributors | None]],
    columns: int,
) -> None:
    """One grid: of what is `held`, the cells where something is wanted."""
    blocks = _blocks(replay)
    width = replay.ranks if blocks else replay.chunks
    rows = []
    for rank, wanted in enumerate(wanted_of):
        row = [Cell(at=x) for x in range(width)]
        own = [chunk for chunk, who in enumerate(wanted) if who is not None]
        for x, chunk in enumerate(own) if blocks else zip(own, own, strict=True):
            who = held[rank][chunk]
            wrong = {"edge": COLORS[1], "linewidth": 2} if who != wanted[chunk] else {}
            cell = summed(who, replay.ranks, at=x, **wrong)
            text = f"{chunk // width}→{chunk % width}" if blocks else cell.text
            row[x] = cell._replace(text=text)
        rows.append(row)
    cells(axes, of_ranks(rows), title=title)
    axes.set_xlim(right=columns + 0.05)


def _blocks(replay: Replay) -> bool:
    """True if each rank brings N of N x N chunks, one for each rank: too wide for a grid."""
    brings = {sum(map(bool, row)) for row in replay.start}
    return replay.chunks == replay.ranks**2 > 1 and brings == {replay.ranks}


Lane = Mapping[str, tuple[float, float]]  # what it does → from, to; "?": it only waits
WAITING: Mapping[str, Mapping[str, Lane]] = {
    "Gloo, on CPUs": {
        "program": {
            "call": (0, 1),
            "compute A": (1, 4),
            "wait()?": (4, 6.5),
            "use sum": (6.5, 8.5),
        },
        "messages": {"all_reduce": (1, 6.5)},
    },
    "NCCL, on GPUs": {
        "program": {
            "call": (0, 1),
            "queue A": (1, 2.4),
            "wait()": (2.4, 3.5),
            "queue use": (3.5, 5.2),
            "goes on": (5.2, 8.5),
        },
        "GPU stream": {"compute A": (1.6, 4.6), "stream waits?": (4.6, 6.8), "use sum": (6.8, 8.5)},
        "NCCL stream": {"all_reduce": (1.3, 6.8)},
    },
}


def waiting() -> Figure:
    """Two panels over the same time: Gloo with two lanes, NCCL with three."""

    def cell(text: str, start: float, end: float) -> Cell:
        idle = text.endswith("?")
        face = WORK["communication" if text == "all_reduce" else "compute"], 0.4
        return Cell(text.rstrip("?"), None if idle else face, end - start, start, dashed=idle)

    panels = {
        title: {
            name: [cell(text, *span) for text, span in lane.items()] for name, lane in of.items()
        }
        for title, of in WAITING.items()
    }
    return lanes(panels, (3.7, 2.52), x_label="time →")
