"""Ranks that make their calls in order, until they wait for one that never comes."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from course.interactive.frames import Cell, Frame, FramesChoice, FramesStepper, Rows, drawing

RANKS, SHOWN = 3, 5
LOOKS = {"held": "waits in it", "done": "has left it", "": "not called"}
USUAL = ["reduce 1", "reduce 2", "barrier", "reduce 3", "reduce 4"]
# What goes wrong → the calls of each rank, in its program's order.
BUGS: dict[str, Sequence[Sequence[str]]] = {
    "nothing": [USUAL] * RANKS,
    "rank 1 leaves out the barrier": [USUAL, USUAL[:2] + USUAL[3:], USUAL],
    "rank 2 has fewer batches": [USUAL, USUAL, USUAL[:4]],
    "rank 0 logs alone": [["reduce 1", "log", *USUAL[1:4]], USUAL, USUAL],
}
Calls = Sequence[Sequence[str]]


def waits_stepper() -> FramesChoice:
    """Three ranks and their collectives in order, with a mistake to choose."""
    title = "The calls of three ranks"
    several = {(b,): FramesStepper(title, [*_frames(c)], LOOKS) for b, c in BUGS.items()}
    return FramesChoice(("What goes wrong",), several)


def stuck_at(calls: Calls) -> int | None:
    """The first place at which not all ranks make the same call; None if there is none."""
    places = enumerate(zip_longest(*calls))
    return next((place for place, made in places if len({*made}) > 1), None)


def _frames(calls: Calls) -> Iterator[Frame]:
    yield Frame(_picture(calls, [0] * RANKS, 0), "Calls meet by their place, not by their name.")
    stuck = stuck_at(calls)
    for place in range(len(calls[0]) if stuck is None else stuck):
        says = f"All ranks come to call {place + 1}, {calls[0][place]}. It is done, and they go on."
        yield Frame(_picture(calls, [place + 1] * RANKS, place + 1), says)
    if stuck is None:
        return
    entered = [stuck] * RANKS
    for rank, own in enumerate(calls):
        if stuck < len(own):
            entered[rank] += 1
            says = f"Rank {rank} enters call {stuck + 1}, {own[stuck]}, and waits for the others."
            yield Frame(_picture(calls, entered, stuck), says)
    yield Frame(_picture(calls, entered, stuck), _diagnosis(calls, stuck))


def _picture(calls: Calls, entered: Sequence[int], done: int) -> str:
    rows: Rows = {}
    for rank, made in enumerate(calls):
        came = enumerate(made[: entered[rank]])
        cells = [Cell("samples", "done" if n < done else "held", call) for n, call in came]
        cells += [Cell("samples", "")] * (SHOWN - len(cells))
        rows[f"rank {rank}"] = [[[cell]] for cell in cells]
    said = (
        f"Rank {rank} has left {min(done, n)} calls and waits in {n - min(done, n)}."
        for rank, n in enumerate(entered)
    )
    return drawing([f"#{place + 1}" for place in range(SHOWN)], rows, " ".join(said))


def _diagnosis(calls: Calls, place: int) -> str:
    """One sentence, as `python -m minidist.diagnose` would say it."""
    absent = [rank for rank, own in enumerate(calls) if place >= len(own)]
    if absent:
        return f"Stuck: rank {absent[0]} has ended and never comes to call {place + 1}."
    made = [own[place] for own in calls]
    odd = next(rank for rank, call in enumerate(made) if made.count(call) == 1)
    other = next(call for call in made if call != made[odd])
    return f"Stuck: rank {odd} is at {made[odd]}, the others at {other}, both as call {place + 1}."
