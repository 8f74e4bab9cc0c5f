"""Things to play with in the book: pictures with sliders, and steppers. No server, no network.

What sliders compute in a browser is the library's Python: see `compiled`. Everything else is
computed here, or by Python in the browser: see `editor`.
"""

from course.widgets.borders import borders_slider
from course.widgets.context import attention_stepper
from course.widgets.editor import editor, stars
from course.widgets.guess import guess, guesses
from course.widgets.held import unit_stepper, zero_stepper
from course.widgets.in_page import best_interval, lost, rule_of_thumb
from course.widgets.pipeline import pipeline_stepper
from course.widgets.prefetch import prefetch_slider
from course.widgets.progress import progress
from course.widgets.rounds import rounds_stepper
from course.widgets.sampler import sampler_stepper
from course.widgets.sliders import (
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
from course.widgets.straggler import straggler_slider
from course.widgets.traced import trace_stepper
from course.widgets.waits import waits_stepper
