"""Pictures of a schedule that was replayed: all steps at once, or played step by step.

For the second one Python writes the trace and every sentence about it; `static/stepper.js` makes
the picture from them, and `static/player.js` the controls. Where no script runs, the sentences are
there to read, as a table.
"""

import json
import os
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minidist.plots import style, told
from minidist.plots.cells import cells
from minidist.plots.style import COLORS, GREY, box
from minidist.plots.told import sentences
from minidist.schedule.replay import Replay


def trace(replay: Replay) -> Figure:
    """Chunks on every rank, before the first step and after each one.

    A cell lists the ranks whose parts are summed in it, and fills up with their number; what the
    step has changed is outlined, a finished sum is green.
    """
    columns = min(3, replay.steps + 1)
    rows = -(-(replay.steps + 1) // columns)
    size = columns * max(replay.chunks * 0.72, 2.2), rows * (replay.ranks * 0.34 + 0.55)
    figure, grid = style.subplots(rows, columns, size=size, layout="tight")
    for after, axes in enumerate(grid.flat):
        if after > replay.steps:
            axes.set_axis_off()
            continue
        changed = {(event.dst, event.chunk) for event in replay.events if event.step == after - 1}
        state = replay.state(after)
        for rank, chunk in np.ndindex(replay.ranks, replay.chunks):
            who = state[rank][chunk]
            share = min(1.0, len(set(who)) / replay.ranks)
            color = COLORS[2] if who == replay.goal[rank][chunk] else COLORS[0]
            box(axes, chunk, rank, share, 1, face=(color, 0.35), linewidth=0)
            edge, width = (COLORS[1], 1.6) if (rank, chunk) in changed else (GREY, 0.5)
            box(axes, chunk, rank, 1, 1, "+".join(map(str, who)), edge=edge, linewidth=width)
        names = [f"rank {rank}" for rank in range(replay.ranks)]
        title = f"after step {after} of {replay.steps}" if after else "start"
        cells(axes, [()] * replay.ranks, names, range(replay.chunks), title=title)
    return figure


# ---- step by step ----

ASSETS = ("widget.css", "player.js", "stepper.js")
BIGGEST = 32  # ranks, and chunks: beyond it nobody can read the cells

HTML = """\
<figure class="minidist-widget schedule{numbers}"{choice}>
<figcaption><strong>{name}</strong> {size}</figcaption>
<script type="application/json">{trace}</script>
<details{open}>
<summary>All steps as a table</summary>
<table>
<thead><tr><th scope="col">Step</th><th scope="col">Messages</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</details>
</figure>
"""
CHOICES = '<div class="minidist-widget choices" data-labels="{labels}">\n{figures}</div>\n'


class Stepper(NamedTuple):
    """A schedule to step through: a notebook shows it as the picture, a terminal as one line."""

    replay: Replay
    others: tuple[Replay, ...] = ()  #: to choose from, beside it
    numbers: tuple[int, ...] = ()  #: with which the ranks begin, and which are shown from the start

    def __repr__(self) -> str:
        end = f"{self.replay.right()} of {self.replay.wanted} chunks right at the end"
        more = f"; and {len(self.others)} more to choose from" if self.others else ""
        return f"{self.replay.name}: {_size(self.replay)}, {end}{more}"

    def _repr_html_(self) -> str:
        # The book serves these files to all its pages; a notebook has nobody to serve them.
        files = "" if os.environ.get("MINIDIST_BOOK") else assets()
        if not self.others:
            return _figure(self.replay, self.numbers) + files
        each = {(each.name, f"{each.ranks}"): each for each in (self.replay, *self.others)}
        figures = (_figure(replay, self.numbers, key) for key, replay in each.items())
        return choices(("Algorithm", "Ranks"), figures) + files


def stepper(replay: Replay, *others: Replay, numbers: Sequence[int] = ()) -> Stepper:
    """Show a replayed schedule as a picture to step through, in the book and in a notebook.

    With `others` there are lists from which one of them all is chosen, by name and by ranks. With
    `numbers`, one for each rank, it opens with the sums in numbers, which a button shows otherwise.

    Example:
        >>> stepper(replay(ring_all_reduce(4)))
        ring all-reduce: 4 ranks, 4 chunks, 6 steps, 16 of 16 chunks right at the end
    """
    for each in (replay, *others):
        if max(each.ranks, each.chunks) > BIGGEST:
            raise ValueError(
                f"{each.name} has {each.ranks} ranks and {each.chunks} chunks; "
                f"a stepper can show {BIGGEST} of each: draw a smaller one"
            )
        if numbers and len(numbers) != each.ranks:
            raise ValueError(f"numbers: expected one for each of {each.ranks} ranks, got {numbers}")
    return Stepper(replay, others, tuple(numbers))


def _figure(replay: Replay, numbers: Sequence[int], choice: Sequence[str] = ()) -> str:
    return HTML.format(
        choice=choice_attribute(choice),
        numbers=" numbers" if numbers else "",
        name=escape(replay.name),
        size=_size(replay),
        # Without a "<", so that no name can end the script element that holds it.
        trace=_json(told.trace(replay, numbers)).replace("<", "\\u003c"),
        rows="\n".join(_row(replay, number) for number in range(replay.steps)),
        open=" open" if not choice else "",
    )


def choices(labels: Sequence[str], figures: Iterable[str]) -> str:
    """Figures of which one is shown at a time, with a list to choose from for each label.

    Each figure carries its own as `choice_attribute` gives it. Without a script all are there.
    """
    return CHOICES.format(labels=escape(_json(labels)), figures="".join(figures))


def choice_attribute(choice: Sequence[str]) -> str:
    return f' data-choice="{escape(_json(choice))}"' if choice else ""


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _size(replay: Replay) -> str:
    counts = {"rank": replay.ranks, "chunk": replay.chunks, "step": replay.steps}
    return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items())


def _row(replay: Replay, number: int) -> str:
    step = (event for event in replay.events if event.step == number)
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(step))
    return f'<tr><th scope="row">{number + 1}</th><td><ul>{items}</ul></td></tr>'


@cache
def assets() -> str:
    static = files("minidist.plots") / "static"
    css, *scripts = ((static / name).read_text("utf-8") for name in ASSETS)
    return f"<style>\n{css}</style>\n" + "".join(f"<script>\n{js}</script>\n" for js in scripts)
