"""Pictures of tokens that travel to their experts, and of how many each gets."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.cells import Cell, cells, of_ranks
from minidist.plots.style import GREY, RANK, TITLE

WIDE = 3.7  # inches


def dispatch(choices: Sequence[Sequence[int]], experts: int) -> Figure:
    """Tokens where they are, and where their experts are; `choices`: each rank's, by token."""
    ranks, each = len(choices), experts // len(choices)
    here = [[(expert, rank) for expert in own] for rank, own in enumerate(choices)]
    sent = sorted(chain.from_iterable(here))
    there = [[token for token in sent if token[0] // each == rank] for rank in range(ranks)]
    panels = {
        "tokens, and the experts that the router has picked": here,
        "after the dispatch: each rank has its experts' tokens": there,
    }
    figure, drawn = style.stacked(panels, (WIDE, 0.5 * ranks + 0.6))
    for axes, rows in drawn:
        shown = [
            [
                Cell(str(expert), (RANK[rank], 0.5), 0.92, x)
                for x, (expert, rank) in enumerate(tokens)
            ]
            for tokens in rows
        ]
        cells(axes, of_ranks(shown), tall=0.9)
        axes.set_xlim(right=max(map(len, there + here)) + 0.05)
    return figure


def balance(loads: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """For each run, the share of tokens that each expert takes, over the steps: stacked bands."""
    figure, drawn = style.stacked(loads, (3.4, 1.6 * len(loads)), sharex=True)
    for axes, shares in drawn:
        colors = [RANK[number % len(RANK)] for number in range(len(shares[0]))]
        by_expert = list(zip(*shares, strict=True))
        axes.stackplot(range(len(shares)), by_expert, colors=colors, alpha=0.7, edgecolor=GREY)
        for number, (share, top) in enumerate(zip(shares[-1], accumulate(shares[-1]), strict=True)):
            if share > 0.04:
                style.beside(axes, top - share / 2, str(number))
        axes.set(xlim=(0, len(shares) - 1), ylim=(0, 1))
        style.chart(axes)
    axes.set_xlabel("step", fontsize=TITLE)
    return figure
