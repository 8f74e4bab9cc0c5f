"""Pictures that only pages of the book need; what a user of minidist needs is in `plots`."""

from course.figures.amounts import (
    curve_panels,
    grouped_bars,
    level,
    measured_and_predicted,
    stacked_bars,
)
from course.figures.before_after import before_after
from course.figures.bucket_timeline import Travel, bucket_timeline
from course.figures.cuts import cuts, elements_kept
from course.figures.data import batch_shares, epoch, shuffle
from course.figures.ddp_step import ddp_step
from course.figures.labelled_curves import Labelled, labelled_curves
from course.figures.mesh import mesh
from course.figures.shards import gradients, holdings
from course.figures.unit_life import unit_life
from course.figures.unit_timeline import unit_timeline
from course.figures.winners import winners

__all__ = [
    "Labelled",
    "Travel",
    "batch_shares",
    "before_after",
    "bucket_timeline",
    "curve_panels",
    "cuts",
    "ddp_step",
    "elements_kept",
    "epoch",
    "gradients",
    "grouped_bars",
    "holdings",
    "labelled_curves",
    "level",
    "measured_and_predicted",
    "mesh",
    "shuffle",
    "stacked_bars",
    "unit_life",
    "unit_timeline",
    "winners",
]
