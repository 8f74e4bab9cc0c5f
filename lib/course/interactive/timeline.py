"""Lanes over time, as HTML: what is there before a script draws them again, for another choice.

`lanes` of `static/sliders.js` makes the same HTML, and a test compares the two.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple


class Bar(NamedTuple):
    """A span of time, as drawn; `low` and `high` are fractions of the lane's height."""

    start: float
    end: float
    kind: str = ""  #: a class of `widgets.css`, if it is not the lane's
    text: str = ""
    low: float = 0
    high: float = 1


class Lane(NamedTuple):
    """A row of bars, under its name, if it has one, and a note."""

    name: str
    note: str
    bars: Sequence[Bar]
    kind: str = ""  #: classes, such as "thin"


Marks = Sequence[Sequence[float | str]]  # the axis: places, and their texts


def milliseconds(most: float, step: int) -> list[list[float | str]]:
    """The marks of an axis in milliseconds, most of them in all."""
    return [[at, f"{at} ms"] for at in range(0, int(0.9 * most), step)]


def still(
    lanes: Iterable[Lane], most: float, marks: Marks, legend: Mapping[str, str], says: str
) -> str:
    """The picture from 0 to `most` with its axis, its legend, and what is said below."""
    rows, says = [], escape(says)
    for lane in lanes:
        name, note = escape(lane.name), escape(lane.note)
        bars = "".join(_bar(bar, most) for bar in lane.bars)
        head = f"<p><b>{name}</b>{note and f' · {note}'}</p>" if name else ""
        rows.append(f'{head}<div class="{f"lane {lane.kind}".strip()}">{bars}</div>')
    axis = "".join(f'<b style="left:{_share(float(at), most)}">{text}</b>' for at, text in marks)
    key = "".join(f'<span><i class="{k}"></i>{escape(word)}</span>' for k, word in legend.items())
    return (
        f'<div class="still"><div class="lanes" role="img" aria-label="{says}">{"".join(rows)}'
        f'<div class="lane axis">{axis}</div></div><p class="legend">{key}</p><p>{says}</p></div>'
    )


def _bar(bar: Bar, most: float) -> str:
    style = f"left:{_share(bar.start, most)};width:{_share(bar.end - bar.start, most)}"
    if (bar.low, bar.high) != (0, 1):
        style += f";bottom:{_share(bar.low, 1)};height:{_share(bar.high - bar.low, 1)}"
    kind = f"class={bar.kind} " if bar.kind else ""
    return f"<i {kind}style={style}>{escape(bar.text)}</i>"


def _share(part: float, whole: float) -> str:
    """In percent, to two digits, without zeros around them: there are many."""
    return f"{100 * part / whole:.2f}".strip("0").rstrip(".").rjust(1, "0") + "%"
