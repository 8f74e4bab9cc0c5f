"""How long calls and steps take on real ranks."""

from course.timing.all_reduces import all_reduces

__all__ = ["all_reduces"]
