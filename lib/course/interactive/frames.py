"""A stepper through pictures that are made here, so that nothing is said again in JavaScript."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from course.interactive.page import assets, figure
from minidist.plots import replay

FRAMES = """\
{legend}<details{open}>
<summary>All steps at once</summary>
<ol class="all">
{frames}
</ol>
</details>
"""


class Frame(NamedTuple):
    """One picture, as HTML, with a sentence about it; the first frame is the start."""

    picture: str
    says: str
    phase: str = ""


class Cell(NamedTuple):
    """A cell of a strip: its part of the state, such as "weights"; how it is; a short text."""

    part: str
    look: str  #: "" for nothing there, or "held", "moving", "old" or "done"
    text: str = ""
    wide: float = 1


class FramesStepper(NamedTuple):
    """Shows frames one by one, with the keys and controls of `minidist.plots.stepper`."""

    title: str
    frames: Sequence[Frame]  #: `drawing` makes their pictures
    looks: Mapping[str, str]  #: what a cell's look means, such as {"held": "in memory"}

    def __repr__(self) -> str:
        return f"{self.title}: {len(self.frames) - 1} steps"

    def _repr_html_(self) -> str:
        return self.figure() + assets("frames.js")

    def figure(self, choice: Sequence[str] = ()) -> str:
        """The figure alone, which `choice` may name as one of several."""
        later = [frame.phase for frame in self.frames[1:]]
        phases = [[phase, len([*run])] for phase, run in groupby(later) if phase]
        items = (f"<li>{frame.picture}<p>{escape(frame.says)}</p></li>" for frame in self.frames)
        frames, opened = "\n".join(items), "" if choice else " open"
        body = FRAMES.format(legend=_legend(self.looks), frames=frames, open=opened)
        named = {"data-phases": json.dumps(phases if all(later) else [])}
        named |= {"data-choice": json.dumps(choice)} if choice else {}
        return figure("frames", self.title, body, **named)


class FramesChoice(NamedTuple):
    """Several steppers of which one is shown; a key is a choice from the list of each label."""

    labels: tuple[str, ...]
    steppers: Mapping[Any, FramesStepper]

    def __repr__(self) -> str:
        return "\n".join(f"{', '.join(key)}: {each!r}" for key, each in self.steppers.items())

    def _repr_html_(self) -> str:
        figures = (each.figure(key) for key, each in self.steppers.items())
        return replay.choices(self.labels, figures) + assets("frames.js")


def _legend(looks: Mapping[str, str]) -> str:
    each = (
        f'<span><span class="strip">{_cell(Cell("", look))}</span> {escape(meaning)}</span>'
        for look, meaning in looks.items()
    )
    return f'<p class="legend">{"".join(each)}</p>\n' if looks else ""


Lines = Sequence[Sequence[Cell]]  # strips one above the other
Rows = dict[str, Sequence[Lines | str]]  # name → what is in each column


def drawing(heads: Sequence[str], rows: Rows, description: str) -> str:
    """Rows of strips as HTML, with a head over each column. A text may stand for the strips."""
    cells = ["<span></span>", *(f'<span class="head">{escape(head)}</span>' for head in heads)]
    for name, columns in rows.items():
        cells.append(f"<span>{escape(name)}</span>")
        cells += map(_column, columns)
    label = f'role="img" aria-label="{escape(description)}"'
    return f'<div class="drawing" style="--strips: {len(heads)}" {label}>{"".join(cells)}</div>'


def _column(column: Lines | str) -> str:
    if isinstance(column, str):
        return f'<span class="note">{escape(column)}</span>'
    strips = (f'<span class="strip">{"".join(map(_cell, strip))}</span>' for strip in column)
    return f'<span class="lines">{"".join(strips)}</span>'


def _cell(cell: Cell) -> str:
    kinds = " ".join(filter(None, (cell.part, cell.look)))
    wide = f' style="flex-grow: {cell.wide:g}"' if cell.wide != 1 else ""
    return f'<i class="{kinds}"{wide}>{escape(cell.text)}</i>'
