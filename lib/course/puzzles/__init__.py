"""Puzzles that a reader solves in the page, and the judge of what was written.

The page brings a *task*: data that the library computed when the book was built. The reader brings
a function. `judge.run` gives one the other and returns a *report*: data that a script shows. The
modules named here import only one another, so that they run under Brython in a browser, too.
"""

IN_THE_PAGE = (
    "schedule",
    "price",
    "programs",
    "collective",
    "lanes",
    "buckets",
    "sharded",
    "pipeline",
    "judge",
)
