"""A pipeline at work, moment by moment, in one of several orders."""

from collections.abc import Iterator, Mapping, Sequence

from course.widgets.frames import Cell, Frame, FramesChoice, FramesStepper, Rows, drawing
from minidist.schedule import pipeline
from minidist.schedule.pipeline import Order, Pass, Work, needs, replay, stages_of

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
    several = {}
    for name, order in ORDERS.items():
        title = f"{name}: {RANKS} ranks, {MICRO} micro-batches"
        several[(name,)] = FramesStepper(title, [*_frames(order)], LOOKS)
    return FramesChoice(("Order",), several)


def _frames(order: Order) -> Iterator[Frame]:
    share = RANKS / stages_of(order)  # of a rank's layers in a stage
    passes = replay(order, {kind: share * takes for kind, takes in pipeline.TAKES.items()})
    end = max(each.end for each in passes)
    says = "Nothing has run yet. A box will have the number of its micro-batch."
    yield Frame(_picture(order, passes, -1.0, end), says)
    for now in sorted({each.start for each in passes}):
        says = " ".join(_sentences(order, passes, now))
        yield Frame(_picture(order, passes, now, end), says)
    waits = 1 - sum(each.end - each.start for each in passes) / (RANKS * end)
    says = f"After {end:g} moments all is done. A rank has waited {100 * waits:.0f}% of the time."
    yield Frame(_picture(order, passes, end, end), says)


def _at_work(passes: Sequence[Pass], rank: int, now: float) -> Pass | None:
    own = (each for each in passes if each.rank == rank)
    return next((each for each in own if each.start <= now < each.end), None)


def _held(passes: Sequence[Pass], rank: int, now: float) -> int:
    """How many micro-batches a rank holds: those whose forward has begun and backward not ended."""
    own = [each for each in passes if each.rank == rank]
    begun = sum(each.work.kind == "F" and each.start <= now for each in own)
    return begun - sum(each.work.kind in "BW" and each.end <= now for each in own)


def _sentences(order: Order, passes: Sequence[Pass], now: float) -> Iterator[str]:
    """What each rank does now, or waits for."""
    for rank in range(RANKS):
        each = _at_work(passes, rank, now)
        later = [p for p in passes if p.rank == rank and p.start > now]
        if each:
            yield f"Rank {rank}: {_words(order, each.work)}."
        elif later:
            work = min(later, key=lambda each: each.start).work
            source = needs(work, stages_of(order))[-1 if work.kind == "I" else 0]
            yield f"Rank {rank} waits for rank {source.stage % RANKS}: {_words(order, source)}."
        else:
            yield f"Rank {rank} is done."


def _words(order: Order, work: Work) -> str:
    stage = f" of stage {work.stage}" if stages_of(order) > RANKS else ""
    return f"{WORDS[work.kind]} {work.micro}{stage}"


def _picture(order: Order, passes: Sequence[Pass], now: float, whole: float) -> str:
    rows: Rows = {}
    for rank in range(RANKS):
        cells, at = list[Cell](), 0.0
        for each in (p for p in passes if p.rank == rank and p.start <= now):
            if each.start > at:
                cells.append(Cell("pause", "", wide=each.start - at))
            look = "old" if now < each.end else "held"
            kind = KINDS[each.work.kind]
            cells.append(Cell(kind, look, str(each.work.micro), each.end - each.start))
            at = each.end
        cells += [Cell("pause", "", wide=whole - at)] if at < whole else []
        held = f"holds {_held(passes, rank, now)}"
        rows[f"rank {rank}, {held}"] = [[cells]]
    said = ", ".join(f"rank {rank} holds {_held(passes, rank, now)}" for rank in range(RANKS))
    return drawing([f"time, up to {whole:g}"], rows, said)
