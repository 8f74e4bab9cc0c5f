"""All that can be written in a page, by name."""

from collections.abc import Iterable
from functools import cache

from course.puzzles import collectives, training
from course.puzzles.tasks import Puzzle


def _by_name(puzzles: Iterable[Puzzle]) -> dict[str, Puzzle]:
    """Puzzles whose task is computed once, however often it is asked for."""
    return {each.name: each._replace(task=cache(each.task)) for each in puzzles}


PUZZLES = _by_name((*collectives.PUZZLES, *training.PUZZLES))
EDITABLE = PUZZLES | _by_name(collectives.TO_PLAY)


def stars_of(puzzle: Puzzle) -> int:
    """How many there are to earn: none for what is only to play with."""
    return len(puzzle.task()["marks"]) if puzzle.name in PUZZLES else 0
