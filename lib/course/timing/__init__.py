"""How long calls and steps take on real ranks."""

from course.timing.all_reduces import all_reduces
from course.timing.turns import best, take_turns

__all__ = ["all_reduces", "best", "take_turns"]
