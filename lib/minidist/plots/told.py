"""A replayed schedule in numbers and words. Without imports: it runs in a page, too."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from minidist.schedule.replay import Event, Replay


def trace(replay: Replay, begin: Sequence[int] = ()) -> dict[str, Any]:
    """All of a replay as data, from which `static/stepper.js` makes its picture."""
    own = ("name", "ranks", "chunks", "steps", "start", "goal")
    of_event = ("step", "src", "dst", "chunk", "reduce", "carried", "result")
    return {
        **{name: getattr(replay, name) for name in own},
        "events": [[getattr(event, name) for name in of_event] for event in replay.events],
        "phases": replay.phases,
        "numbers": numbers(replay, begin),
    }


def numbers(replay: Replay, begin: Sequence[int] = ()) -> dict[str, list[Any]]:
    """The replay once more, on numbers: what each rank holds at the start, and each event's result.

    Rank r begins with `begin[r]` in all chunks, or with a number from 1 to 9 for each; None is
    where it holds nothing.
    """

    def first(rank: int, chunk: int) -> int:
        return begin[rank] if begin else (7 * rank + 3 * chunk) % 9 + 1

    held: list[list[int | None]] = [
        [first(rank, chunk) if who else None for chunk, who in enumerate(row)]
        for rank, row in enumerate(replay.start)
    ]
    start, before, step = [row[:] for row in held], held, -1
    results: list[int] = []
    for event in replay.events:
        if event.step != step:  # a step sends what was held before it
            step, before = event.step, [row[:] for row in held]
        sent, own = before[event.src][event.chunk], before[event.dst][event.chunk]
        result = (sent or 0) + (own or 0) * event.reduce
        held[event.dst][event.chunk] = result
        results.append(result)
    return {"start": start, "results": results}


def sentences(step: Iterable[Event]) -> list[str]:
    """Say each message of one step; messages of which the same can be said share a sentence."""
    runs: list[list[Event]] = []
    for event in step:
        if runs and _alike(event) == _alike(runs[-1][0]):
            runs[-1].append(event)
        else:
            runs.append([event])
    lines = []
    for events in runs:
        src, dst, reduce, *parts = _alike(events[0])
        chunks = [str(event.chunk) for event in events]
        noun, it = ("chunk", "it") if len(chunks) == 1 else ("chunks", "them")
        carried, result = ("+".join(map(str, who)) for who in parts)
        lines.append(
            f"rank {src} sends {noun} {', '.join(chunks)} ({carried}) to rank {dst}, which "
            f"{f'adds {it}' if reduce else 'overwrites its own'}: {result}"
        )
    return lines


def _alike(event: Event) -> tuple[Any, ...]:
    return event.src, event.dst, event.reduce, event.carried, event.result
