"""All that can be written in a page, by name."""

from course.puzzles import collectives, training

PUZZLES = {each.name: each for each in (*collectives.PUZZLES, *training.PUZZLES)}
EDITABLE = PUZZLES | {each.name: each for each in collectives.TO_PLAY}
