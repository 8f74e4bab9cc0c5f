"""Pictures for choosing a grid: how fast a step can be with so much memory."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY

LOOKS = {  # of what is computed again: a mark and its color
    "none": ("o", COLORS[0]),
    "selective": ("s", COLORS[4]),
    "full": ("^", COLORS[1]),
}
LETTERS = {"data": "N", "tensor": "T", "pipeline": "P", "context": "C", "expert": "X"}


class Place(NamedTuple):
    """A grid in the figure."""

    held: float  #: bytes at the peak
    speed: float  #: tokens per second and GPU
    degrees: Mapping[str, int]
    recompute: str


def frontier(places: Sequence[Place], limit: float, name: str) -> Figure:
    """Speed over memory: the fastest grid that fits below each point, with its degrees above 1.

    `limit`: bytes that may be used, named `name`.
    """
    figure, axes = style.single(size=(3.4, 3.4))
    ordered = sorted(places, key=lambda place: place.held)
    line: Any = {"color": GREY, "lw": 1, "where": "post", "zorder": 1}
    across = [place.held / 1e9 for place in ordered] + [limit / 1e9]
    axes.step(across, [place.speed for place in ordered] + [ordered[-1].speed], **line)
    for kind, (marker, color) in LOOKS.items():
        own = [(p.held / 1e9, p.speed) for p in ordered if p.recompute == kind]
        if own:
            axes.plot(*zip(*own, strict=True), marker, color=color, ms=5, label=kind)
    axes.axvline(limit / 1e9, color=GREY, ls="--", lw=1)
    said: Any = {"fontsize": style.LABEL, "color": GREY, "ha": "right"}
    axes.text(limit / 1e9, 0.02 * ordered[-1].speed, f"{name} ", **said)
    axes.set(xlim=(0, 1.04 * limit / 1e9), ylim=(0, 1.15 * ordered[-1].speed))
    style.chart(axes, x_label="peak of a rank, GB", y_label="tokens per second and GPU")
    style.legend_below(figure, 3)
    _name(figure, axes, ordered)
    return figure


def _name(figure: Figure, axes: Any, ordered: Sequence[Place]) -> None:
    """Write degrees at each point where they differ from the next one's, unless names touch."""
    figure.draw_without_rendering()  # only now is it known how far apart points are
    lowest, last = float("inf"), ""
    for place in reversed(ordered):
        degrees = ((letter, place.degrees[name]) for name, letter in LETTERS.items())
        name = " ".join(f"{letter}{degree}" for letter, degree in degrees if degree > 1)
        height = axes.transData.transform((0, place.speed))[1] * 72 / figure.dpi
        if name != last and height < lowest:
            at, far = (place.held / 1e9, place.speed), place.held > 0.7 * ordered[-1].held
            where: Any = {"textcoords": "offset points", "va": "center"}
            where |= {"xytext": (0, 9), "ha": "right"} if far else {"xytext": (4, -9)}
            axes.annotate(name, at, fontsize=style.LABEL, **where)
            lowest = height - 1.2 * style.LABEL
        last = name
