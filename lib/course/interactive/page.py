"""A widget in a page: a figure with its data as JSON, which scripts draw.

The book serves the scripts and styles to all its pages; in a notebook each widget brings its own.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from course.interactive.compiled import script
from minidist.plots import replay

NOTHING = "<p>Here is a picture with sliders where scripts may run.</p>"
COMPILED = "compiled.js"  # which `compiled` makes of the library
SCRIPTS = (COMPILED, "sliders.js", "bars.js", "curves.js", "timelines.js", "searches.js")


class Html(NamedTuple):
    """HTML for a page or a notebook. A terminal gets one line."""

    line: str
    html: str

    def __repr__(self) -> str:
        return self.line

    def _repr_html_(self) -> str:
        return self.html


def figure(kind: str, title: str, body: str, goal: str = "", **attributes: object) -> str:
    """A widget's figure; `goal` and `body` are HTML, ids and data are attributes."""
    named = "".join(f' {name}="{escape(str(each))}"' for name, each in attributes.items())
    goal = goal and f' <span class="goal">{goal}</span>'
    caption = f"<figcaption><strong>{escape(title)}</strong>{goal}</figcaption>"
    return f'<figure class="minidist-widget {kind}"{named}>\n{caption}\n{body}</figure>\n'


class Control(NamedTuple):
    """A slider over `values`, or with `choose` a list to choose from; `texts` are what it shows."""

    name: str
    label: str
    values: Sequence[Any]
    texts: Sequence[str]
    start: Any  #: one of the values
    choose: bool = False

    @property
    def place(self) -> int:
        """Index of the starting value."""
        return list(self.values).index(self.start)


def control(
    name: str,
    label: str,
    values: Sequence[Any],
    start: Any,
    text: Callable[[Any], str] = "{:,}".format,
) -> Control:
    """A slider whose texts are made of its values."""
    return Control(name, label, values, [text(value) for value in values], start)


def choice(name: str, label: str, names: Iterable[str], start: str) -> Control:
    """A list of names to choose from."""
    return Control(name, label, [*names], [*names], start, choose=True)


class Slider(NamedTuple):
    """A picture with controls. A notebook shows it; a terminal gets one line."""

    kind: str  #: which picture `bars.js`, `curves.js`, `timelines.js` or `searches.js` draws
    title: str
    controls: Sequence[Control]
    data: Mapping[str, object]
    still: str = NOTHING  #: what is there without a script, such as a picture of `timeline.still`

    def __repr__(self) -> str:
        start = (f"{each.label.lower()} {each.texts[each.place]}" for each in self.controls)
        return f"{self.title}: {', '.join(start)}"

    def _repr_html_(self) -> str:
        controls = [{**each._asdict(), "index": each.place} for each in self.controls]
        body = f"{json_script({**self.data, 'controls': controls})}\n{self.still}\n"
        return figure("slider", self.title, body, **{"data-widget": self.kind}) + assets(*SCRIPTS)


def json_script(data: object) -> str:
    """A script element without a "<" in its JSON, so that nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'


@cache
def _scripts(names: tuple[str, ...]) -> str:
    static = files("course.interactive") / "static"
    css = (static / "widgets.css").read_text("utf-8")
    texts = (script() if name == COMPILED else (static / name).read_text("utf-8") for name in names)
    scripts = (f"<script>\n{text}</script>\n" for text in texts)
    return replay.assets() + f"<style>\n{css}</style>\n" + "".join(scripts)


def assets(*scripts: str) -> str:
    """The scripts and styles of a widget, or nothing in the book, which serves them."""
    return "" if os.environ.get("MINIDIST_BOOK") else _scripts(scripts)


# ---- what sliders run over, and how it reads ----


def stops(low: int, high: int, mantissas: Sequence[float]) -> list[float]:
    """The mantissas times each power of ten from 10^low on, up to 10^high itself."""
    each = [float(f"{m}e{power}") for power in range(low, high) for m in mantissas]
    return [*each, float(f"1e{high}")]


def scaled(value: float, unit: str, scale: Sequence[tuple[float, str]]) -> str:
    """A number to three digits with the largest prefix of `scale` that it reaches."""
    for factor, prefix in scale:
        if value >= factor:
            digits = value / factor
            return f"{digits:{'.0f' if digits >= 100 else '.3g'}} {prefix}{unit}"
    return f"0 {unit}"


def seconds_text(seconds: float) -> str:
    """Seconds, with a prefix."""
    return scaled(seconds, "s", [(1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")])
