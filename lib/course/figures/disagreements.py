"""The three ways in which a disagreement between ranks shows: an error, a wait, or nothing."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minidist.plots import style
from minidist.plots.style import COLORS, GREY, PHASE

STEP, TALK = 1.0, 0.34  # durations of a step's computing and of its all-reduce
WRONG = COLORS[1]
TALKS = PHASE["all-gather"]


class Kind(NamedTuple):
    """What rank 1 does in its third step, and what is seen of it."""

    title: str
    stop: str  # written where rank 1 leaves the others; "" if it goes on
    others: str  # written where the others stand then


KINDS = (
    Kind("Loud: somebody gets an error", "✕ dies", "error"),
    Kind("Silent wait: nobody gets anything", "elsewhere", "waits …"),
    Kind("Silent drift: everybody goes on", "", ""),
)


def disagreements(ranks: int = 3, steps: int = 5) -> Figure:
    """One timeline a kind, all of the same ranks and steps. A sketch, no timing."""
    figure, grid = style.subplots(3, 1, size=(3.4, 0.42 * 3 * (ranks + 1) + 0.3), sharex=True)
    for axes, kind in zip(grid[:, 0], KINDS, strict=True):
        _panel(axes, kind, ranks, steps)
    grid[-1, 0].set_xlabel("time", fontsize=9, loc="right")
    return figure


def _panel(axes: Axes, kind: Kind, ranks: int, steps: int) -> None:
    last = 2 if kind.stop else steps
    for step in range(last):
        left = step * (STEP + TALK)
        for rank in range(ranks):
            drifted = rank == 1 and step >= 2
            text = f"{step + 1}'" if drifted else f"{step + 1}"
            _box(axes, left, rank, STEP, text, WRONG if drifted else PHASE["forward"])
            _box(axes, left + STEP, rank, TALK, "Σ", TALKS)
    if kind.stop:
        left = last * (STEP + TALK)
        for rank in range(ranks):
            if rank == 1:
                _say(axes, left + 0.15, rank, kind.stop)
                continue
            _box(axes, left, rank, STEP, f"{last + 1}", PHASE["forward"])
            wide = TALK if kind.others == "error" else (steps - last - 1) * (STEP + TALK) + TALK
            _box(axes, left + STEP, rank, wide, "Σ", None)
            if kind.others == "error":
                _say(axes, left + STEP + TALK + 0.15, rank, kind.others)
            else:
                axes.texts[-1].set_text(f"Σ {kind.others}")
    axes.set_title(kind.title, fontsize=9, loc="left")
    axes.set_xticks([])
    axes.set_xlim(-0.05, steps * (STEP + TALK) + 0.05)
    style.name_rows(axes, (f"rank {rank}" for rank in range(ranks)))
    style.table(axes, labelsize=8)


def _say(axes: Axes, x: float, rank: int, text: str) -> None:
    axes.text(x, rank + 0.52, text, ha="left", va="center", fontsize=8)


def _box(axes: Axes, left: float, rank: int, wide: float, text: str, color: str | None) -> None:
    look: tuple[str, float] | None = (color, 0.45) if color else None
    style.outline(
        axes, left, rank + 0.12, GREY, width=wide, height=0.76, linewidth=0.8, facecolor=look
    )
    if color is None:
        axes.patches[-1].set(linestyle="--")
    style.write(axes, left + wide / 2, rank + 0.52, text)
