"""Pictures of what is split inside a layer: its matrices, its sequence, its experts."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.figures.boxes import box, rank_names, single, sketch, stacked, table_rows
from from_scratch.context import pieces
from minidist.plots import style
from minidist.plots.style import GREY, LABEL, RANK, TITLE

WIDE = 3.7  # inches
RANKS = 4


def split_block() -> Figure:
    """The two matrices of a feed-forward block, cut by columns and by rows, on four ranks."""
    figure, axes = sketch((WIDE, 2.1), (-0.1, 14.6), (7.9, -0.3), margin=0.0)
    _matrix(axes, (0, 1.0), (2, 2), "x")
    _sign(axes, 2.5, 2.0, "·")
    _matrix(axes, (3, 1.0), (4, 2), "A", columns=True)
    _sign(axes, 7.75, 2.0, "=")
    _matrix(axes, (8.5, 1.0), (4, 2), "hidden units", columns=True)
    _matrix(axes, (0, 5.1), (4, 2), "hidden units", columns=True)
    _sign(axes, 4.5, 6.1, "·")
    _matrix(axes, (5, 4.6), (2, 3), "B", rows=True)
    _sign(axes, 7.75, 6.1, "=")
    for rank in range(RANKS):
        box(axes, 8.5 + 1.6 * rank, 5.5, 1.1, 1.2, str(rank), face=(RANK[rank], 0.5))
        if rank:
            _sign(axes, 8.25 + 1.6 * rank, 6.1, "+")
    axes.text(11.45, 7.3, "an all-reduce adds them", ha="center", fontsize=LABEL)
    return figure


def _sign(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=TITLE + 2)


def _matrix(
    axes: Axes,
    at: tuple[float, float],
    size: tuple[float, float],
    name: str,
    *,
    columns: bool = False,
    rows: bool = False,
) -> None:
    """A box with its name above; cut, each rank's part has its number."""
    (x, y), (width, height) = at, size
    axes.text(x + width / 2, y - 0.25, name, ha="center", va="bottom", fontsize=TITLE)
    if not (columns or rows):
        box(axes, x, y, width, height, "all ranks")
        return
    across, down = (width / RANKS, 0) if columns else (0, height / RANKS)
    for rank in range(RANKS):
        place = x + rank * across, y + rank * down, across or width, down or height
        box(axes, *place, str(rank), face=(RANK[rank], 0.5))


def causal_blocks(ranks: int) -> Figure:
    """Which piece of queries sees which of keys, by whom and when: in order, and in a zigzag."""
    figure, grid = style.subplots(1, 2, size=(WIDE, 2.3))
    count = 2 * ranks
    for axes, zigzag in zip(grid[0], (False, True), strict=True):
        owner = dict[int, int]()
        for rank in range(ranks):
            for piece in pieces(rank, ranks, zigzag):
                halves = [piece] if zigzag else [2 * piece, 2 * piece + 1]
                owner |= dict.fromkeys(halves, rank)
        for query in range(count):
            for key in range(count):
                seen = key <= query
                face = (RANK[owner[query]], 0.5) if seen else None
                step = str((owner[query] - owner[key]) % ranks + 1) if seen else ""
                box(axes, key, query, 1, 1, step, face=face, linewidth=0.4)
        style.name_rows(axes, [f"rank {owner[query]}" for query in range(count)])
        axes.set(xlim=(-0.05, count + 0.05), xticks=[])
        axes.set_xlabel("keys and values", fontsize=LABEL)
        axes.set_title("zigzag" if zigzag else "in order", fontsize=TITLE, loc="left")
        style.table(axes)
    return figure


def dispatch(choices: Sequence[Sequence[int]], experts: int) -> Figure:
    """Tokens where they are, and where their experts are; `choices`: each rank's, by token."""
    ranks, each = len(choices), experts // len(choices)
    there: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for rank, own in enumerate(choices):
        for expert in own:
            there[expert // each].append((expert, rank))
    here = [[(expert, rank) for expert in own] for rank, own in enumerate(choices)]
    panels = {
        "tokens, and the experts that the router has picked": here,
        "after the dispatch: each rank has its experts' tokens": [sorted(own) for own in there],
    }
    figure, drawn = stacked(panels, (WIDE, 0.5 * ranks + 0.6))
    longest = max(map(len, there + here))
    for axes, rows in drawn:
        for row, tokens in enumerate(rows):
            for place, (expert, rank) in enumerate(tokens):
                box(axes, place, row, 0.92, 0.9, str(expert), face=(RANK[rank], 0.5), linewidth=0.5)
        table_rows(axes, rank_names(ranks), longest + 0.1, offset=0.45)
    return figure


def balance(loads: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """For each run, the share of tokens that each expert takes, over the steps: stacked bands."""
    figure, drawn = stacked(loads, (3.4, 1.6 * len(loads)), sharex=True)
    for axes, shares in drawn:
        by_expert = list(zip(*shares, strict=True))
        colors = [RANK[number % len(RANK)] for number in range(len(by_expert))]
        axes.stackplot(range(len(shares)), by_expert, colors=colors, alpha=0.7, edgecolor=GREY)
        bottom = 0.0
        for number, share in enumerate(shares[-1]):
            if share > 0.04:
                axes.text(1.02 * len(shares), bottom + share / 2, str(number), fontsize=LABEL,
                          va="center")  # fmt: skip
            bottom += share
        axes.set(xlim=(0, len(shares) - 1), ylim=(0, 1))
        style.chart(axes)
    figure.axes[-1].set_xlabel("step", fontsize=TITLE)
    return figure


def losses(runs: Mapping[str, Sequence[float]]) -> Figure:
    """The loss over the steps, on a logarithmic axis; each run's name at its end."""
    figure, axes = single(size=(3.4, 2.3))
    for number, (name, values) in enumerate(runs.items()):
        color, dashes = style.COLORS[number], style.DASHES[number] if number else "-"
        axes.plot(values, color=color, ls=dashes, lw=1.4)
        axes.text(1.02 * len(values), values[-1], name, color=color, fontsize=LABEL, va="center")
    axes.set_yscale("log")
    axes.set_xlim(0, max(map(len, runs.values())))
    axes.set_xlabel("step", fontsize=TITLE)
    axes.set_title("loss", fontsize=TITLE, loc="left")
    axes.grid(alpha=0.3)
    style.chart(axes)
    return figure
