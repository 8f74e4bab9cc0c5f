"""All that can be written in a page, by name: what `shown.yml` says of it, and its task.

To add a puzzle: an entry of `shown.yml` (goal, hints, the code to begin with), its task in
`collectives` or `training`, its solution in `answers/NAME.txt`, and in `tests/wrong/puzzles.txt`
four wrong answers or more, each with the sentence that it deserves.
"""

from importlib.resources import files

import yaml

from course.puzzles import collectives, training
from course.puzzles.tasks import Puzzle

TASKS = collectives.TASKS | training.TASKS
SHOWN = yaml.safe_load((files("course.puzzles") / "shown.yml").read_text("utf-8"))
EDITABLE = {name: Puzzle(name, **shown, task=TASKS[name]) for name, shown in SHOWN.items()}
PUZZLES = {name: each for name, each in EDITABLE.items() if each.hints}


def stars_of(puzzle: Puzzle) -> int:
    """The number of stars to earn: none in one that is only to play with."""
    return len(puzzle.task["marks"]) if puzzle.name in PUZZLES else 0
