"""Pictures that only pages of the book need; what a user of minidist needs is in `plots`."""

from course.figures.amounts import grouped_bars, level, stacked_bars
from course.figures.batch_memory import batch_memory
from course.figures.before_after import before_after
from course.figures.beyond import pipeline_stages, split
from course.figures.block_memory import block_memory
from course.figures.blocks import uneven_blocks
from course.figures.bucket_timeline import Travel, bucket_timeline
from course.figures.budget import budget
from course.figures.checkpoints import async_save, time_lost
from course.figures.curves import Curve, curves
from course.figures.cuts import cuts, elements_kept
from course.figures.data import batch_shares, epoch
from course.figures.ddp_step import ddp_step
from course.figures.death import after_a_death
from course.figures.disagreements import disagreements
from course.figures.double_tree import double_tree
from course.figures.drift import Run, drift
from course.figures.fits import filled
from course.figures.floors import floors
from course.figures.flow import map_shuffle_reduce
from course.figures.foretold import foretold
from course.figures.global_batch import global_batch
from course.figures.idea import idea
from course.figures.in_a_row import in_a_row
from course.figures.ladder import Rung, ladder
from course.figures.last_calls import last_calls
from course.figures.link_lanes import link_lanes, message_times
from course.figures.lives import Life, lives
from course.figures.machine import machine
from course.figures.masks import masks
from course.figures.mesh import mesh
from course.figures.mesh_sums import mesh_sums
from course.figures.messages import message_rounds, messages
from course.figures.one_memory import one_memory
from course.figures.pipeline import pipeline
from course.figures.readings import readings
from course.figures.ring_circle import chunk_tour, ring_circle
from course.figures.ring_path import ring_path
from course.figures.roofline import roofline
from course.figures.rounds import rounds
from course.figures.seats import seats
from course.figures.shards import gradients
from course.figures.spreads import spreads
from course.figures.step_as_reduce import step_as_reduce
from course.figures.step_memory import rank_memory, step_memory
from course.figures.strong_scaling import strong_scaling
from course.figures.two_paths import two_paths
from course.figures.uneven import uneven
from course.figures.unit_life import unit_life
from course.figures.unit_timeline import unit_timeline
from course.figures.waiting import waiting
from course.figures.what_fits import what_fits
from course.figures.winners import byte_ticks, winners
from course.figures.zero_state import flat_layout, who_holds
from course.figures.zero_step import zero_step

__all__ = [
    "Curve",
    "Life",
    "Run",
    "Rung",
    "Travel",
    "after_a_death",
    "async_save",
    "batch_memory",
    "batch_shares",
    "before_after",
    "block_memory",
    "bucket_timeline",
    "budget",
    "byte_ticks",
    "chunk_tour",
    "curves",
    "cuts",
    "ddp_step",
    "disagreements",
    "double_tree",
    "drift",
    "elements_kept",
    "epoch",
    "filled",
    "flat_layout",
    "floors",
    "foretold",
    "global_batch",
    "gradients",
    "grouped_bars",
    "idea",
    "in_a_row",
    "ladder",
    "last_calls",
    "level",
    "link_lanes",
    "lives",
    "machine",
    "map_shuffle_reduce",
    "masks",
    "mesh",
    "mesh_sums",
    "message_rounds",
    "message_times",
    "messages",
    "one_memory",
    "pipeline",
    "pipeline_stages",
    "rank_memory",
    "readings",
    "ring_circle",
    "ring_path",
    "roofline",
    "rounds",
    "seats",
    "split",
    "spreads",
    "stacked_bars",
    "step_as_reduce",
    "step_memory",
    "strong_scaling",
    "time_lost",
    "two_paths",
    "uneven",
    "uneven_blocks",
    "unit_life",
    "unit_timeline",
    "waiting",
    "what_fits",
    "who_holds",
    "winners",
    "zero_step",
]
