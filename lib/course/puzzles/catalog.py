"""All that can be written in a page, by name."""

from course.puzzles import collectives, training
from course.puzzles.tasks import Puzzle

PUZZLES = {each.name: each for each in (*collectives.PUZZLES, *training.PUZZLES)}
EDITABLE = PUZZLES | {each.name: each for each in collectives.TO_PLAY}


def stars_of(puzzle: Puzzle) -> int:
    """How many there are to earn: none for what is only to play with."""
    return len(puzzle.task["marks"]) if puzzle.name in PUZZLES else 0
