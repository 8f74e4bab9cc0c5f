"""Pictures that only pages of the book need; what a user of minidist needs is in `plots`."""

from course.figures.amounts import (
    curve_panels,
    grouped_bars,
    level,
    measured_and_predicted,
    stacked_bars,
)
from course.figures.before_after import before_after
from course.figures.blocks import uneven_blocks
from course.figures.cuts import cuts, elements_kept
from course.figures.data import batch_shares, epoch
from course.figures.death import after_a_death
from course.figures.flow import map_shuffle_reduce
from course.figures.in_a_row import in_a_row
from course.figures.mesh import mesh
from course.figures.mesh_sums import mesh_sums
from course.figures.messages import messages, rounds
from course.figures.shards import gradients, holdings
from course.figures.step_as_reduce import step_as_reduce
from course.figures.unit_life import unit_life
from course.figures.unit_timeline import unit_timeline
from course.figures.waiting import waiting
from course.figures.winners import winners

__all__ = [
    "after_a_death",
    "batch_shares",
    "before_after",
    "curve_panels",
    "cuts",
    "elements_kept",
    "epoch",
    "gradients",
    "grouped_bars",
    "holdings",
    "in_a_row",
    "level",
    "map_shuffle_reduce",
    "measured_and_predicted",
    "mesh",
    "mesh_sums",
    "messages",
    "rounds",
    "stacked_bars",
    "step_as_reduce",
    "uneven_blocks",
    "unit_life",
    "unit_timeline",
    "waiting",
    "winners",
]
