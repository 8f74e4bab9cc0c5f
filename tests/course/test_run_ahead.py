"""The diagram of a CPU that runs ahead: when gathers are exposed, and when they are not."""

import itertools

from matplotlib.patches import Rectangle

from course.chapters.fsdp.ahead import (
    CPU,
    FORWARD,
    GPU,
    UNITS,
    WAYS,
    forward_works,
    ran_ahead,
    run_ahead,
)
from minidist.schedule.lanes import Span, end, spans

AHEAD, STOPPED, PREFETCHED = (spans(forward_works(*how)) for how in WAYS.values())


def gaps(found: list[Span]) -> list[float]:
    """The GPU's pauses between two blocks."""
    own = [span for span in found if span.lane == GPU]
    return [after.start - before.end for before, after in itertools.pairwise(own)]


def test_without_synchronization_only_the_first_gather_is_exposed() -> None:
    assert gaps(AHEAD) == [0] * (UNITS - 1)
    assert max(span.end for span in AHEAD if span.lane == CPU) < 2 * FORWARD


def test_a_synchronization_per_block_exposes_each_gather_and_prefetch_hides_all_but_launches() -> (
    None
):
    gathers = [span.end - span.start for span in STOPPED if span.kind == "all-gather"]
    assert all(gap >= took for gap, took in zip(gaps(STOPPED), gathers[1:], strict=True))
    launches = [span.end - span.start for span in PREFETCHED if span.kind == "launches"]
    assert all(
        0 < gap <= 2 * max(launches) < gathers[0] + max(launches) for gap in gaps(PREFETCHED)
    )
    assert end(AHEAD) < end(PREFETCHED) < end(STOPPED)


def test_no_more_than_two_units_are_gathered_at_a_time() -> None:
    for found in (AHEAD, STOPPED, PREFETCHED):
        computed = [span for span in found if span.lane == GPU]
        starts = [span.start for span in found if span.kind == "all-gather"]
        assert all(start >= before.end for start, before in zip(starts[2:], computed, strict=False))
    assert [axes.get_title(loc="left") for axes in run_ahead().axes] == [*WAYS]


def test_a_recorded_pass_is_drawn_as_it_was() -> None:
    layers = {"entered": [0.0, 2], "launched": [1.0, 3], "started": [1.0, 4], "ended": [4.0, 6]}
    (axes,) = ran_ahead({"as it is": layers}).axes
    boxes = [(p.get_x(), p.get_width()) for p in axes.patches if isinstance(p, Rectangle)]
    assert boxes == [(0, 1), (2, 1), (1, 3), (4, 2)]
