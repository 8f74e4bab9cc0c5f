"""Things to play with in the book: pictures with sliders, steppers, questions, an editor."""

from course.chapters.ddp.widgets import borders_slider
from course.chapters.disagree.straggler import straggler_slider
from course.chapters.disagree.waits import waits_stepper
from course.chapters.feeding.widgets import sampler_stepper
from course.chapters.fsdp.widgets import prefetch_slider
from course.chapters.gpus.widgets import trace_stepper
from course.chapters.keep_going.widgets import rounds_stepper
from course.chapters.pipelines.widgets import pipeline_stepper
from course.chapters.sequences.widgets import attention_stepper
from course.interactive.editor import editor, stars
from course.interactive.guess import guess, guesses
from course.interactive.held import unit_stepper, zero_stepper
from course.interactive.in_page import best_interval, lost, rule_of_thumb
from course.interactive.progress import progress
from course.interactive.searching import search_slider
from course.interactive.sliders import (
    checkpoint_slider,
    curves_slider,
    grid_slider,
    overlap_slider,
    peak_slider,
    plan_slider,
    scaling_slider,
    state_slider,
    time_text,
)
