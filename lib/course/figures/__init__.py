"""Pictures that only pages of the book need; what a user of minidist needs is in `plots`."""

from course.figures.amounts import (
    curve_panels,
    grouped_bars,
    level,
    measured_and_predicted,
    stacked_bars,
)
from course.figures.before_after import before_after
from course.figures.cuts import cuts, elements_kept
from course.figures.data import batch_shares, epoch, shuffle
from course.figures.double_tree import double_tree
from course.figures.floors import floors
from course.figures.labelled import Line, labelled
from course.figures.mesh import mesh
from course.figures.one_memory import one_memory
from course.figures.pipeline import pipeline
from course.figures.ring_path import ring_path
from course.figures.rounds import rounds
from course.figures.shards import gradients, holdings
from course.figures.unit_life import unit_life
from course.figures.unit_timeline import unit_timeline
from course.figures.winners import winners

__all__ = [
    "Line",
    "batch_shares",
    "before_after",
    "curve_panels",
    "cuts",
    "double_tree",
    "elements_kept",
    "epoch",
    "floors",
    "gradients",
    "grouped_bars",
    "holdings",
    "labelled",
    "level",
    "measured_and_predicted",
    "mesh",
    "one_memory",
    "pipeline",
    "ring_path",
    "rounds",
    "shuffle",
    "stacked_bars",
    "unit_life",
    "unit_timeline",
    "winners",
]
