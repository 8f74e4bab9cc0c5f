"""Questions about crossings: the size at which two algorithms take the same time."""

from collections.abc import Callable, Mapping

from course.ask.verdict import Wrong, ask_as, draws, number
from minidist.schedule.cost import Link, seconds, switch
from minidist.schedule.schedule import Schedule

Crossing = Callable[[int, float, float], float]
Algorithm = Callable[[int], Schedule]


def check_crossing(
    function: Crossing, ranks: int, ways: Mapping[str, Algorithm], *, above: str, why: str
) -> None:
    """Raise if two ways do not take the same time at the size function(ranks, alpha, beta).

    `above` names the way that wins above the crossing, `why` says what the times are made of.
    """
    draw = draws(ranks)
    drawn = Link(draw.uniform(1e-6, 1e-4), draw.uniform(1e-11, 1e-9))
    for link in (Link(1e-5, 1e-9), Link(3e-6, 1e-11), drawn):
        given = ranks, link.alpha, link.beta
        where = f"For {ranks} ranks, alpha {link.alpha:g} s and beta {link.beta:g} s/byte "
        size = ask_as(number, "a number of bytes", function, *given, case=where)
        if size <= 0:
            raise Wrong(f"{where}you say {size:g}; expected a number of bytes above zero.")

        def times(size: float, link: Link = link) -> list[float]:
            return [seconds(build(ranks), size, switch(link)) for build in ways.values()]

        rounding = max(1, 1e-6 * size)  # whole bytes, or float32
        near, far = times(max(size - rounding, 0)), times(size + rounding)
        if (near[0] < near[1]) == (far[0] < far[1]):
            (first, second), (one, other) = ways, times(size)
            slower = first if one > other else second
            raise Wrong(
                f"{where}you say {size:,.0f} bytes. There {first} takes {one * 1e6:,.1f} us and "
                f"{second} {other * 1e6:,.1f} us: {slower} is slower, so they cross at a "
                f"{'larger' if slower == above else 'smaller'} size. {why}"
            )
