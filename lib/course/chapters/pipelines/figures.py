"""Pipelines in time: who works on which micro-batch when."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from minidist.plots.cells import Cell, lanes, of_ranks
from minidist.plots.style import GREY, PART, PHASE
from minidist.schedule.pipeline import Order, Pass, most_held, stages_of

LOOKS = {
    "F": PHASE["forward"],
    "B": PHASE["backward"],
    "I": PHASE["backward"],
    "W": PART["gradients"],
}
BUBBLE = GREY, 0.18
CHUNKS = 0.5, 0.2, 0.75  # opacity of a rank's first, second and third stage


def order_of(passes: Sequence[Pass]) -> Order:
    """The work of each rank, in its order."""
    ranks = 1 + max(each.rank for each in passes)
    timed = sorted(passes, key=lambda each: each.start)
    return [[each.work for each in timed if each.rank == rank] for rank in range(ranks)]


def gaps(passes: Sequence[Pass]) -> Iterator[tuple[int, float, float]]:
    """Rank, start and end of each wait until the last rank is done."""
    end = max(each.end for each in passes)
    free = dict.fromkeys((each.rank for each in passes), 0.0)
    for each in sorted(passes, key=lambda each: each.start):
        if each.start > free[each.rank]:
            yield each.rank, free[each.rank], each.start
        free[each.rank] = each.end
    yield from ((rank, at, end) for rank, at in free.items() if at < end)


def pipelines(panels: Mapping[str, Sequence[Pass]]) -> Figure:
    """A panel for each: a row per rank, the number of each micro-batch, and the most it holds.

    Of a rank with several stages it holds so many micro-batches of them all. Waits are grey.
    """
    end = max(each.end for passes in panels.values() for each in passes)
    drawn = {}
    for title, passes in panels.items():
        order = order_of(passes)
        rows: list[list[Cell]] = [[] for _ in order]
        for rank, start, until in gaps(passes):
            rows[rank].append(Cell("", BUBBLE, until - start, start, linewidth=0))
        for work, rank, start, until in passes:
            face = LOOKS[work.kind], CHUNKS[work.stage // len(order) % len(CHUNKS)]
            text = str(work.micro) if until - start >= 0.025 * end else ""
            rows[rank].append(Cell(text, face, until - start, start))
        for row, most in zip(rows, most_held(order), strict=True):
            row.append(Cell(f"holds {most * len(order) / stages_of(order):g}", wide=0, at=end))
        drawn[title] = of_ranks(rows)
    size = 3.5, sum(0.24 * len(rows) + 0.42 for rows in drawn.values())
    return lanes(drawn, size, tall=0.9)
