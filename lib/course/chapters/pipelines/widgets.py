"""A pipeline at work, moment by moment, in one of several orders."""

from collections.abc import Iterator, Mapping, Sequence

from course.interactive.frames import Cell, Frame, FramesChoice, FramesStepper, Rows, drawing
from minidist.schedule import pipeline
from minidist.schedule.pipeline import (
    Order,
    Pass,
    Work,
    homes,
    needs,
    replay,
    stages_of,
)

RANKS, MICRO = 3, 6
LOOKS = {"old": "runs now", "held": "has run"}
KINDS = {"F": "forward", "B": "backward", "I": "backward", "W": "gradients"}
WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradients"}
ORDERS: Mapping[str, Order] = {
    "GPipe": pipeline.gpipe(RANKS, MICRO),
    "1F1B": pipeline.one_f_one_b(RANKS, MICRO),
    "interleaved, two chunks": pipeline.interleaved(RANKS, MICRO, 2),
    "zero bubble": pipeline.zero_bubble(RANKS, MICRO),
}


def pipeline_stepper() -> FramesChoice:
    """Three ranks and six micro-batches; a forward takes one moment, a backward two."""
    title = f"{RANKS} ranks, {MICRO} micro-batches"
    several = {
        (name,): FramesStepper(f"{name}: {title}", [*_frames(order)], LOOKS)
        for name, order in ORDERS.items()
    }
    return FramesChoice(("Order",), several)


def _frames(order: Order) -> Iterator[Frame]:
    share = RANKS / stages_of(order)  # a stage's share of a rank's layers
    passes = replay(order, {kind: share * takes for kind, takes in pipeline.TAKES.items()})
    end, waits = max(each.end for each in passes), pipeline.bubble(passes)
    says = "Nothing has run yet. A box will have the number of its micro-batch."
    yield Frame(_picture(passes, share, -1.0, end), says)
    for now in sorted({each.start for each in passes}):
        yield Frame(_picture(passes, share, now, end), " ".join(_sentences(order, passes, now)))
    says = f"After {end:g} moments all is done. A rank has waited {100 * waits:.0f}% of the time."
    yield Frame(_picture(passes, share, end, end), says)


def _sentences(order: Order, passes: Sequence[Pass], now: float) -> Iterator[str]:
    """Sentences on what each rank does now, or waits for."""
    home, of = homes(order), {each.work: each for each in passes}
    for rank in range(RANKS):
        own = [each for each in passes if each.rank == rank]
        later = [each for each in own if each.start > now]
        at_work = [each.work for each in own if each.start <= now < each.end]
        if at_work:
            yield f"Rank {rank}: {_words(order, at_work[0])}."
        elif later:
            work = min(later, key=lambda each: each.start).work
            needed = needs(work, len(home))
            late = max((of[each] for each in needed if each in of), key=lambda each: each.end)
            yield f"Rank {rank} waits for rank {late.rank}: {_words(order, late.work)}."
        else:
            yield f"Rank {rank} is done."


def _words(order: Order, work: Work) -> str:
    stage = f" of stage {work.stage}" if stages_of(order) > RANKS else ""
    return f"{WORDS[work.kind]} {work.micro}{stage}"


def _picture(passes: Sequence[Pass], share: float, now: float, whole: float) -> str:
    rows, said = Rows(), list[str]()
    for rank in range(RANKS):
        own, cells, at = [each for each in passes if each.rank == rank], list[Cell](), 0.0
        for work, _, start, end in (each for each in own if each.start <= now):
            if start > at:
                cells.append(Cell("pause", "", wide=start - at))
            look = "old" if now < end else "held"
            cells.append(Cell(KINDS[work.kind], look, str(work.micro), end - start))
            at = end
        cells += [Cell("pause", "", wide=whole - at)] if at < whole else []
        # It holds what its forward has begun and backward not ended.
        begun = sum(each.work.kind == "F" and each.start <= now for each in own)
        held = begun - sum(each.work.kind in "BW" and each.end <= now for each in own)
        rows[f"rank {rank}, holds {held * share:g}"] = [[cells]]
        said.append(f"rank {rank} holds {held * share:g}")
    return drawing([f"time, up to {whole:g}"], rows, ", ".join(said))
