"""Puzzles that a reader solves in the page, and the judge of what was written.

The page brings a *task*: data that the library computed when the book was built. The reader brings
a function. `judge.run` gives one the other and returns a *report*: data that a script shows. The
modules named here import only one another, so that they run under Brython in a browser, too.
"""

from typing import Any

Task = dict[str, Any]  # the page's data: see `tasks`
IN_THE_PAGE = (
    "minidist.schedule.replay",
    "minidist.schedule.lanes",
    "minidist.plots.told",
    "course.puzzles.price",
    "course.puzzles.programs",
    "course.puzzles.collective",
    "course.puzzles.lanes",
    "course.puzzles.buckets",
    "course.puzzles.sharded",
    "course.puzzles.pipeline",
    "course.puzzles.judge",
)
