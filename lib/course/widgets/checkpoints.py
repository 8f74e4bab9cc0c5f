"""How often to save a checkpoint, when something fails now and then: Daly's model (2006)."""

from course.widgets.in_page import best_interval as best_interval
from course.widgets.in_page import lost as lost
from course.widgets.in_page import rule_of_thumb as rule_of_thumb
from course.widgets.page import Slider, control, rank_stops, seconds_text

MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86_400.0, 365 * 86_400.0
UNITS = ((DAY, "days"), (HOUR, "h"), (MINUTE, "min"), (0.0, "s"))


def checkpoint_slider() -> Slider:
    """The share of time lost over the interval between checkpoints, and where it is least."""
    counts = [n for n in rank_stops() if n >= 8]
    each = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
    saves = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0]
    restarts = [10.0, 30.0, *(MINUTE * minutes for minutes in (1, 2, 5, 10, 20, 30, 60))]
    controls = [
        control("gpus", "GPUs", counts, 4096),
        control("years", "A GPU fails once in", each, 5.0, "{:g} years".format),
        control("save", "A save stops training for", saves, 30.0, time_text),
        control("restart", "A restart takes", restarts, 10 * MINUTE, time_text),
    ]
    title = "Time lost to failures and to checkpoints"
    return Slider("checkpoints", title, controls, {"year": YEAR})


def time_text(seconds: float) -> str:
    """12 min, with three digits at most; below a tenth of a second, 12.8 ms."""
    if seconds < 0.1:
        return seconds_text(seconds)
    unit, name = next((unit, name) for unit, name in UNITS if seconds >= unit)
    value = seconds / (unit or 1)
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"
